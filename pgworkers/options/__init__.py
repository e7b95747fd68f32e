"""What people write in their app, read and checked where it is written.

`options` reads durations, sizes, names and keys; `backoff` reads retry curves, `verdicts` what is retried at all,
`routing` which queue a task goes to, `schedule` when it is due; `signature` reads what a function takes, and
`arguments` turns a call of it into the JSON object of a job and back; `loading` imports the user's file, which shadows
nothing of ours (`dependencies`). Everything here is pure but for those two, knows no database and no process, and
answers a wrong declaration with a UsageError that says what to write instead.
"""
