"""Passwords out of texts that people will see: an app's own error may quote its DSN. Pure."""

from __future__ import annotations

import re

_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@'\"]*):[^\s@'\"]+@", re.IGNORECASE)
_WORD = re.compile(
    r"(\b(?:password|passwd|pgpassword)\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s,;'\"]+)", re.IGNORECASE
)


def scrub(text: str) -> str:
    return _WORD.sub(r"\1***", _URL.sub(r"\1:***@", text))
