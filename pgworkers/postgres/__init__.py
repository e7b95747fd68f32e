"""Connections to Postgres, statements and migrations. Nothing here knows what a job is.

`database_choice` decides which database is used. `connect` opens a connection, directly with our session settings or
through a pooler, and refuses a server that cannot work. Statements are `.sql` files; `statements` loads them and runs a
`Query` on any connection. `session` runs the same queries faster on connections that only we use. `migrate` brings the
schema up to date, and `lock_wait` retries a migration that does not get its locks.

When a connection is lost, the error is raised to the caller, and `driver_errors` translates it for users. A statement
that got no answer in time closes its connection.
"""
