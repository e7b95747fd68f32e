"""POSIX and Linux, and nothing else.

What lives here: thin, typed wrappers around what the kernel offers to somebody who runs a tree of processes: how an
interpreter begins and ends (`interpreter`), death signals and subreapers (`prctl`), descriptors without a name
(`memfd`) and those that user code must not meet (`descriptors`), process titles (`titles`), what a child inherits
(`environment`, `streams`) and how often it may die (`budget`), shared memory (`scoreboard`), framing of byte streams
(`frames`), who may begin what (`tickets`) and until when (`term`), what was not sent yet (`shelf`), packets
(`packets`), signals turned into notes (`signals`), who is whose child (`tree`) and which master's (`origin`), how
orphans are ended (`sweep`) and reaped (`adopted`), memory and CPU of a process (`measure`, `memory`; of whom it is not
asked again: `resting`), evidence of the kernel's out-of-memory killer (`oom`), the service manager's socket (`notify`),
limits of nice, threads and OOM score (`limits`), and the points where a test may let a process die (`faults`).

Who calls it: master, supervisor and worker alike. What it may touch: the process it is called in, and
/proc. It knows no job, no queue, no database, and makes no decision: a wrong number of workers or a job to
stop is somebody else's.

Two facts of Linux decide the shape of the tree and are worth knowing before reading on:

- **PDEATHSIG is sent when the parent *thread* ends**, is cleared by fork, and is lost if the parent was
  already gone when it was set. So every process sets it from its own main thread and then compares
  `getppid()`.
- **A child subreaper inherits orphans.** A worker is one, so what its handler double-forks becomes its own
  child; the supervisor is one too, so what a dead worker leaves becomes the supervisor's child. Therefore a
  child of the supervisor that is not one of its workers belongs to a worker that is dead, whatever session
  or process group it moved to and whatever environment it has. Sweeping needs no marker and no guess. It
  signals such children, whose pids cannot be re-used before we reap them, and their descendants through
  pidfds: all are frozen first and then killed. (docs/adr/13)
"""
