"""What a process that imports the user's code inherits: everything but the variables that hold the database's password.

The master keeps them; a worker gets the address over its supervisor's socket, so `ctx.connect()` and `task.enqueue()` work,
and what a handler prints, logs or hands to the programs it starts holds no password. What that is worth: docs/security.md.
"""

from __future__ import annotations

from collections.abc import Mapping

SECRETS = ("PGWORKERS_DSN", "PGWORKERS_DIRECT_DSN", "DATABASE_URL", "PGPASSWORD")
#: Names, separated by commas, that an operator lets through.
INHERIT = "PGWORKERS_INHERIT"


def for_children(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that runs the user's code."""
    kept = {name.strip() for name in environ.get(INHERIT, "").split(",")}
    return {name: value for name, value in environ.items() if name not in SECRETS or name in kept}


def hint(text: str) -> str:
    """What to add to the error of an app that stumbled over a variable it is not given; empty: it did not."""
    named = [name for name in SECRETS if name in text]
    if not named:
        return ""
    return (
        f"; {named[0]}, set or not, is kept from processes that import the app: it may hold the password of the queue's "
        f"database. Use ctx.connect(), give your own address another name, or let it through with {INHERIT}={named[0]}"
    )
