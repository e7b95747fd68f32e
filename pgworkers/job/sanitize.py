"""Making what handlers leave behind fit for Postgres: data must never stop a job from finishing.

Text columns refuse NUL and lone surrogates; jsonb refuses their escapes too, NaN and Infinity, numbers beyond
`numeric` and nesting beyond its stack. Everything here is pure, and cheap for what needs no cleaning.
"""

from __future__ import annotations

import re

import msgspec

MAX_ERROR_LINE_CHARACTERS = 300

REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"
MAX_JSON_DEPTH = 500  #: deeper JSON is not stored: readers recurse
MAX_NUMBER_DIGITS = 4000  #: Python itself refuses to read an integer of more than 4300

_FORBIDDEN_CHARACTERS = re.compile("[\x00\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")
# What may need cleaning: escapes of NUL or of surrogates, long exponents, long numbers. Anything else that jsonb
# refuses (NaN, raw control characters, bad syntax) msgspec refuses as well.
_SUSPICIOUS = re.compile(r"\\u(?:0000|[dD][89a-fA-F])|\d[eE][+-]?\d{3}|\d{400}")
_TOKEN = re.compile(
    r"""(?P<space>[ \t\n\r]+)
      | (?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+")
      | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<unknown>-?(?:NaN|Infinity))
      | (?P<other>[\[\]{},:]|true|false|null)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = re.compile(
    r"\\(?:u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<bad>u0000|u[dD][89a-fA-F][0-9a-fA-F]{2})|(?P<fine>u[0-9a-fA-F]{4}|[\"\\/bfnrt])|(?P<stray>.?))"
    r"|(?P<control>[\x00-\x1f])",
    re.DOTALL,
)
_json_decoder = msgspec.json.Decoder(msgspec.Raw)


def clean_text(value: str, limit: int) -> str:
    """`value` without NUL and lone surrogates, at most `limit` characters."""
    if len(value) > limit:
        value = value[: max(0, limit - 1)] + "…"
    return _FORBIDDEN_CHARACTERS.sub(REPLACEMENT_CHARACTER, value)


def one_line(value: str, limit: int = 300) -> str:
    """`value` as one line of at most `limit` characters: job data cannot forge a second one."""
    return clean_text(_CONTROL.sub(" ", value[: 4 * limit]).strip(), limit)


def clean_json(raw: bytes | bytearray | memoryview | str | None) -> str | None:
    """The JSON text `raw` as one that jsonb takes; None when it is not JSON, or nested too deeply."""
    if raw is None:
        return None
    value = raw if isinstance(raw, str) else bytes(raw).decode("utf-8", "replace")
    value = _FORBIDDEN_CHARACTERS.sub(REPLACEMENT_CHARACTER, value)
    if _is_json(value) and not _SUSPICIOUS.search(value) and _depth_bound(value) <= MAX_JSON_DEPTH:
        return value
    return _rewrite_json(value)


def clean_json_or_string(raw: bytes | str | None, limit: int = 10_000) -> str | None:
    """Like `clean_json`, but text that is not JSON is kept as a JSON string, cut to `limit`: it may be a result."""
    found = clean_json(raw)
    if found is None and raw is not None:
        value = raw if isinstance(raw, str) else bytes(raw).decode("utf-8", "replace")
        return msgspec.json.encode(clean_text(value, limit)).decode()
    return found


def _is_json(value: str) -> bool:
    try:
        _json_decoder.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _depth_bound(value: str) -> int:
    return value.count("[") + value.count("{")


def _rewrite_json(value: str) -> str | None:
    """Token by token, without recursion."""
    parts: list[str] = []
    at = depth = 0
    while at < len(value):
        match = _TOKEN.match(value, at)
        if match is None:
            return None
        at = match.end()
        token = match[0]
        match match.lastgroup:
            case "string":
                token = _ESCAPES.sub(_clean_escape, token)
            case "number":
                token = _clean_number(token)
            case "unknown":
                token = "null"
            case "other" if token in "[{":
                depth += 1
                if depth > MAX_JSON_DEPTH:
                    return None
            case "other" if token in "]}":
                depth -= 1
        parts.append(token)
    result = "".join(parts)
    return result if _is_json(result) else None


def _clean_escape(match: re.Match[str]) -> str:
    if match["bad"]:
        return REPLACEMENT_CHARACTER
    if match["control"]:
        return f"\\u{ord(match['control']):04x}" if match["control"] != "\0" else REPLACEMENT_CHARACTER
    if match["stray"] is not None:
        return REPLACEMENT_CHARACTER + match["stray"]
    return match[0]


def _clean_number(token: str) -> str:
    """A number that numeric can hold and Python can read back: too large is null, too small is 0, too long is rounded."""
    mantissa, _, exponent = token.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    if len(exponent.lstrip("+-")) > 6:
        power = -1_000_000 if exponent.startswith("-") else 1_000_000
    else:
        power = int(exponent or "0")
    digits = (whole + fraction).strip("0")
    if not digits:
        return "0"
    magnitude = len((whole + fraction).lstrip("0")) - len(fraction) + power
    if magnitude > MAX_NUMBER_DIGITS:
        return "null"
    if magnitude < -MAX_NUMBER_DIGITS:
        return "0"
    if len(token) > MAX_NUMBER_DIGITS:
        return repr(float(token)) if magnitude < 300 else "null"
    return token
