"""Postgres itself: reaching it, speaking to it, keeping its schema, and running one when there is none.

`connect` decides which database is meant and what each of our sessions is like. `statements` loads the `.sql` files that
lie beside the verbs in `job/` and runs them on blocking and async connections. `migrate` brings the schema up to date.
`embedded` (with its `embedded_*` parts) manages a server of our own for people who have none.

Nothing here knows what a job is. May import: settings, clock, errors. Called by everything above.
"""
