"""One supervisor per queue: it imports the app once, forks workers, stops them, reaps them, and tells.

It holds nothing: no connection, no thread, no state of the user but the imported app. That is what makes its
fork safe and its death harmless. `python -m pgworkers.supervisor` is exec'd by the master with one control
socket; orders come down on it (`messages.Command`), facts go up (`messages.Fact`).

- `boot`     imports the app, and refuses to fork if that started threads
- `fork`     makes a worker: its crib once for each slot, socketpair, capture files, the child's first steps
- `hooks`    what modules want done around a fork, and what of it is needed here
- `crew`     all its living workers, and the slots of those that are dying; `member` what it knows of one
- `ladder`   (pure) which rung of ask, raise, dump, kill is due
- `watch`    (pure) deadlines, memory limits, stalls
- `suspend`  a group that stands still by wish, and its deadline with it
- `climb`    does what `ladder` and `watch` decided
- `reap`     the death of a worker: group, rusage, orphans, cause
- `capture`  output and stack dumps in nameless files; `stack` (pure) words a dump, `scrub` (pure) takes passwords out
- `screen`   passes output on to stderr, never waits for it, and counts what it drops
- `main`     boot, tick, leave
- `describe` and `ask`: a short-lived child that imports the app and tells the master what is in it

The loop never blocks but in its selector. A stopped master, a full terminal, a worker that hangs in C: each
costs memory or a dropped line, never a tick, because deadlines hold only if the loop goes round.
"""
