"""A worker: one process, one job at a time, one socket to the master, one heartbeat thread.

It is forked by its supervisor with the app already imported, and lives until the master closes its socket,
its queue's `max_jobs` or `max_rss` is reached, its jobs left threads that burn, or somebody kills it.

- `birth`     the first steps after the fork: streams, signals, stack dumps, limits
- `rehearsal` a life on stage, in the supervisor, so that no worker has to learn what all of them need
- `main`      start hooks, READY, then order after order
- `messages`  what it and the master say to each other
- `inbox`     a ticket, then the order that it names
- `plan`      what orders with the same head have in common, read once
- `attempt`   one order: slot, window, handler, report
- `window`    the only stretch of code in which a signal may raise
- `loop`      the event loop of `async def` handlers, and how one is stopped
- `outcome`   (pure) what an exception means for the job, and its text
- `tidy`      what a handler must not leave for the next job; `noting` knows whether it changed anything
- `heartbeat` beat, progress, checkpoint, title, reaping of adopted orphans, and the check that we still have parents;
              late where lives are brief
- `leftover`  (pure) whether threads that jobs left use CPU while there is none
- `outbox`    sending frames from two threads without tearing them; ends of very short jobs many at once

What it may touch: its own slot of the scoreboard, its socket, itself. It has no database connection, never
forks by itself, and knows nothing of retries or states: it reports what happened, the master decides what
that means. A worker that dies reports nothing; its supervisor tells.

What a handler changes of its process is put back after it: working directory, umask, environment, signal
handlers and mask, timers, locale, CPU affinity, stdin to stderr; children it left are killed, tasks it left
on the event loop are cancelled. What cannot be put back (a lowered limit, another user) makes this the
worker's last job. Threads and open files stay: libraries keep pools of both for good reasons. Only threads that
use CPU while there is no job cost the worker its place (docs/adr/15). A process pool must be made, and its
processes started, in a start hook: children that were there before the job are spared, and so are threads.
"""
