"""Typed wrappers around what Linux offers to a tree of processes.

They cover signals and parent-death signals, descriptors that user code must not meet, nameless files, process titles,
resource limits, what a child inherits, the parent of each process, the end of the processes that a job left, and the
service manager's socket. Master, supervisor and worker use them. They touch the calling process and /proc, and know no
queue and no database.

/proc is read by hand here, not with psutil: these readers run several times a second for each worker, before every fork, or
in a worker, where each import costs memory in every process. Start times are compared in clock ticks, because psutil's
`create_time()` moves when the wall clock is set. The command line, the doctor and the development server use
psutil.

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
