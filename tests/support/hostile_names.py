"""Names that do harm where they are pasted into a shell without quotes."""

from __future__ import annotations

#: Most of them run `touch pwned`; `*` and `--help` become other words.
HOSTILE_NAMES = [
    "mail; touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "a' ; touch pwned; '",
    'a"; touch pwned; "',
    "a\ntouch pwned",
    "a # b && touch pwned",
    "a | touch pwned",
    "a > pwned",
    "*",
    "--help",
]
