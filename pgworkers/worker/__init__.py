"""A worker: one process, one job at a time, one socket to the master, one heartbeat thread.

Its supervisor forks it with the app already imported. `startup` turns the copy of the supervisor into a process of its
own, `main` runs the start hooks and then one order after another, and `attempt` runs one order: the handler, inside the
signal window, and its report. A worker ends when the master closes its channel, when its queue's `max_jobs` or `max_rss` is
reached, when its process cannot be cleaned, when its jobs left threads that use CPU, or when it is killed.

A worker touches its own slot of the scoreboard, its channel and itself. It has no database connection of its own, never
forks by itself, and knows nothing of retries or states: it reports what happened, and the master decides what that means.
A worker that dies reports nothing. Its supervisor reports the death.

`cleanup` undoes what a handler changed in its process: working directory, umask, environment, signal handlers and mask,
timers, locale, CPU affinity, priority, limits, stdin to stderr. It kills the children that the handler left, and the event
loop cancels the tasks that it left. What cannot be undone (a lowered hard limit, another user) makes this the worker's last
job. Each job is followed by this check, except that a task whose last 100 jobs changed nothing is checked at most every
10 ms and before the worker waits; its first change can be seen by the jobs that start until then.

Threads and open files stay, because libraries keep pools of both. Only threads that use CPU while there is no job cost the
worker its place (docs/adr/15). A process pool must be made, and its processes started, in a start hook: children and
threads that were there before the first job are spared.
"""
