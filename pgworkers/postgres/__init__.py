"""Postgres itself: reaching it, speaking to it, keeping its schema, and running one when there is none.

`connect` decides which database is meant, `session` declares the settings that our statements rely on, direct and through
a pooler, `moments` reads times that Python cannot hold, `dsn` says what of an address may be shown.
`statements` loads the `.sql` files that lie beside the verbs in `job/` and runs them on anybody's connections; our own
sessions, which run the same few for ever, speak by libpq itself: `wording` says what, `exchange` waits in an event loop
(a host, `aenqueue`), `blocking` without one; `arrays` are their batches' parameters. `migrate` brings the schema up to date;
`lock_wait` retries what cannot get its locks.
`embedded` manages a server of our own for people who have none: `embedded_locks` counts who uses it, `embedded_sessions`
who is connected without that, `embedded_account` says as whom it runs, `embedded_place` where its data and socket lie,
`embedded_binaries` where its programs come from, `embedded_process` starts and ends it, `embedded_cluster` makes what is
inside. docs/adr/11 has the reasons. `ownership` says whether what was found may be another user's doing.

Nothing here knows what a job is. May import: settings, bounds, clock, errors. Called by everything above.
"""
