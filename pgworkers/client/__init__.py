"""The database from the side of those who enqueue and wait: a web server, a script, a handler.

`address` finds out which database is meant (and starts the embedded one), `seats` keeps one connection per
process and one per event loop, `session` runs queries on them, `batches` what takes more than one, `waiting` tells
many waiters of finished jobs over one listening connection. `rates` are an app's rates by scope, `backends` the sessions
that a handler opens with `ctx.connect()`. Nothing is opened before the first use, and psycopg is not imported before it
either: a worker that never enqueues never loads it. The master does not come here; it has its own
connections.
"""
