"""One supervisor per queue: it imports the app once, forks workers, stops jobs, reaps processes, and reports to the master.

It has no connection, no thread, and nothing of the user but the imported app. That makes its fork safe and its death
harmless. The master executes `python -m pgworkers.supervisor` with one control socket: commands come down on it, events go
up (`messages`).

`app_loader` imports the app and refuses to go on if that started threads. `worker_pool` keeps as many workers as are wanted
and `fork` makes them. `ladder` and `limits` decide which job must stop, `stopper` acts, and `reaper` finds out how a worker
died and ends what it left. `suspend` stops and continues a job for an operator. `output` passes on what workers print, and
`stack_dump` reads their stacks. `describe` runs a short-lived child that imports the app and describes it to the master.

The loop in `main` waits in poll(). Besides, it may wait up to 50 ms for a worker to stop (`signals.stop_and_wait`), 20 ms in
a sweep and 50 ms while it passes on output. It never waits for the master, for a terminal or for a handler, because
deadlines hold only if the loop goes round.
"""
