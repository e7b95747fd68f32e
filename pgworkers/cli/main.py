"""The entry point of the `pgworkers` script, which first hides the passwords of the command line from `ps`.

Every user of the machine can read the command line of a process while it lives. Passwords in it are overwritten before
anything else happens. They are visible for the moments before that; `--dsn-file` and variables avoid it.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Sequence

from pgworkers.linux import process_exit


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point of the `pgworkers` script."""
    gc.set_threshold(20_000)  # importing makes many objects that stay
    if argv is None:
        hide_passwords_from_ps(sys.argv[1:])
    from pgworkers.linux import environment

    environment.open_missing_streams()
    from pgworkers.cli.error_report import run_command_line

    process_exit.exit_process(run_command_line(argv))


HIDDEN_WORD = "***"
_PASSWORD = re.compile(r"://[^/\s]*@|password\s*=", re.IGNORECASE)


def hide_passwords_from_ps(argv: Sequence[str]) -> None:
    """Overwrite the command line that `ps` shows, without addresses and passwords."""
    shown = redact_arguments(argv)
    if shown != list(argv):
        from pgworkers.linux import titles

        titles.set_title(f"pgworkers {' '.join(shown)}")


def redact_arguments(argv: Sequence[str]) -> list[str]:
    """The words, with those hidden that are an address or may contain a password. Pure."""
    shown: list[str] = []
    for word in argv:
        name, equals, _ = word.partition("=")
        if shown and shown[-1] == "--dsn":
            shown.append(HIDDEN_WORD)
        elif name == "--dsn" and equals:
            shown.append(f"--dsn={HIDDEN_WORD}")
        else:
            shown.append(HIDDEN_WORD if _PASSWORD.search(word) else word)
    return shown
