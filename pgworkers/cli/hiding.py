"""Hide the passwords of this command line from `ps`.

The words of a command line can be read by every user of the machine for as long as the process lives. They are
overwritten before anything else happens; for the moments before that, `--dsn-file` and variables are the cure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
_SECRET = re.compile(r"://[^/\s]*@|password\s*=", re.IGNORECASE)


def hide_passwords(argv: Sequence[str]) -> None:
    """Show this process without the addresses that stood on its command line."""
    shown = without_addresses(argv)
    if shown != list(argv):
        from pgworkers.process import titles

        titles.show(f"pgworkers {' '.join(shown)}")


def without_addresses(argv: Sequence[str]) -> list[str]:
    """The words, with those hidden that are an address or may contain a password. Pure."""
    shown: list[str] = []
    for word in argv:
        name, equals, _ = word.partition("=")
        if shown and shown[-1] == "--dsn":
            shown.append(HIDDEN)
        elif name == "--dsn" and equals:
            shown.append(f"--dsn={HIDDEN}")
        else:
            shown.append(HIDDEN if _SECRET.search(word) else word)
    return shown
