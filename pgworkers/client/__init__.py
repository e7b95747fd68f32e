"""The database as seen by a process that enqueues and waits: a web server, a script, a handler.

Every operation is written once, as steps, and runs with blocking calls or in an event loop. Blocking callers of a process
share one connection, and so do the tasks of an event loop; bulk enqueues and waits open connections of their own. Nothing is
opened before the first use, and psycopg is not imported before it: a worker whose handlers never enqueue does not load it.

A lost connection is replaced before the next query. If it was lost during an enqueue, the caller gets OutcomeUnknown,
because the jobs may have been committed. The master does not use this package; it has its own connections.
"""
