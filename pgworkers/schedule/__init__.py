"""Schedules: when a job is due by the calendar, and how it becomes a row exactly once.

Two halves. The pure half answers questions about time and knows neither a clock nor a database:

- `fields` reads a cron expression (croniter parses it) and finds the next or the last wall time that matches;
- `zones` says what a wall time means in a zone: once, twice (autumn) or never (spring);
- `expression` puts the two together: `next_after`, `latest_at` and `count`, each in constant time or nearly so;
- `plan` decides from a definition, the last tick considered and `now`: which ticks fire, how many are passed by, when
  to look again.

The other half is verbs, each a `Query` with its `.sql` beside it, as in `job/`: `sync` writes down what a deploy
declares, `fire` reads what is due and turns ticks into jobs, `operate` is what people do (pause, resume, remove, run now,
scopes), `show` is what they read, `times` what gauges say.

The database clock decides: `fire.due` answers `now()` with the rows, the plan takes it as an argument. A tick (schedule,
scope, at) and its job are inserted by one statement; the primary key makes a second job for the same tick impossible,
whoever thinks it leads. Every write to a schedule's row raises its `revision` and every firing names the one it planned
with: what was changed, paused, removed or fired meanwhile is not fired again, and zero rows is an answer, not an error.

May import: job, postgres, specs, clock, errors. Called by: the leader's duty (`master/ticks`), the API, the command line.
"""
