"""The master: one process per host that holds everything and forks nothing.

It holds the database connections of the host (claim, finish, listen, leadership), the sockets to all workers and the
HTTP port; it execs supervisors and never imports the user's code: a short-lived `describe` child tells it the app's queues
and tasks as data. Everything runs on one asyncio loop.

- `main` boots, serves and leaves, as `options` say; `boot` is what happens before the loop; `host` puts the parts together,
  `joining` makes it known, `service` tells systemd.
- `dispatch` decides who runs what, with a `desk` per queue; `handing` gives and takes back; `crew` is one channel, `held` a
  job from its claim to its end.
- `pace` says how much may wait in front of a worker and which ends are foreseen, `lookout` when nothing may wait any longer
  (both pure); `orders` words them.
- `supervisors` starts them and starts them again (`child` is one, `orphans` what it left, `silence` if it says
  nothing); `hearing` is what they say of their workers, and how those are buried; `scaling` says how many workers.
- `leadership` takes and renews the term that `duties` need; `ticks` are the duty of schedules, `rescuing`
  that of lost hosts.
- `reload` replaces the code, `requests` are what operators ask, `drain` is how a host ends, `signals` what it hears.
- `wakes` says when a host looks for work and of what it wants to be told, `positions` where it looks, `before` how it
  looks at what lies before that (all pure); `bell` is what wakes the claimer.
- `claims`, `ends`, `renewal`, `duties` are the four users of the database, each with its own `line`; `reckoning` (pure)
  is the database's time to judge others by; `overlooked` gives back what was claimed without an answer; `writing` is one
  batch of ends, `aside` keeps those whose row is locked or which the database refuses.
- `verdict` turns a report or a death into what is written, `sentences` say it to people. Pure.
- `http` answers scrapes, `view` knows what to say, `sights` what is measured for it; `pulse` is everything that is
  looked at again and again, `errands` what a host does by the way, `burst` (pure) what one says at its end;
  `minutes` and `settling` write statistics and settle batches.

May import from every room below; nobody imports from here but `cli`.
"""
