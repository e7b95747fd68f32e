"""The development server: a Postgres that pgworkers starts and stops by itself.

`server.EmbeddedServer.acquire()` starts the server of a directory, or joins the one that runs there. Every process that
acquired it holds a shared file lock. The last one to release stops the server, unless other sessions are connected. If a
process is killed, the kernel releases its lock, and the next user finds the server running or starts it again.
docs/adr/11-embedded-server.md has the reasons.
"""
