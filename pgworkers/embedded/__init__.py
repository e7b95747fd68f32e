"""The embedded development server: a Postgres that pgworkers starts, locks and stops by itself."""
