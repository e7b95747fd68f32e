"""Schedules: when a job is due by the calendar, and how it becomes a row exactly once.

Half of the package is pure: it has neither a clock nor a database. `cron` reads a cron expression or an interval and finds
the next tick, the latest one, and how many lie between two times. `zones` says what a wall time means in a zone: once, twice
(autumn) or never (spring). `plan` decides from a definition, the last tick that was planned and the time: which ticks fire,
how many are skipped, and when to plan again.

The other half builds queries, as in `job/`. `definitions` writes what a deploy declares, does what people ask for (pause,
resume, remove, run now, scopes) and reads what they see. `fire` reads what is due and turns ticks into jobs.

The clock of the database decides: `fire.due_schedules` returns `now()` with its rows, and the plan takes it as an argument.
A tick (schedule, scope, time) and its job are inserted by one statement. The primary key makes a second job for the same
tick impossible, even if two hosts believe that they lead. Each write to the row of a schedule raises its `revision`, and
each firing names the revision it was planned with. So a schedule that was changed, paused, removed or fired in the meantime
does not fire again. Zero rows is an answer, not an error.
"""
