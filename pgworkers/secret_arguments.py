"""Secret arguments: how they are marked, stored, encrypted and hidden.

A secret argument is stored as an object with the single key `$secret`. So everything that shows arguments can hide it
without knowing the task: log lines, `jobs show`, `top`, and programs that read the table themselves. The names of a task's
secret parameters are known to the master, too, for jobs that another program inserted without the mark.

With a cipher, the value behind `$secret` is encrypted text. It contains the task and the parameter, so that a value that
was copied to another row or parameter is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec

from pgworkers.errors import UsageError

SECRET_KEY = "$secret"
ENCRYPTED_KEY = "$encrypted"
HIDDEN_TEXT = "[secret]"
#: Parts of a secret that are shorter are not searched for in errors: they would match by chance.
MIN_SCRUBBED_CHARACTERS = 6


@dataclass(frozen=True, slots=True)
class Secret:
    """Marks a parameter as secret: `token: Annotated[str, Secret()]`. Its value is not shown anywhere."""


@runtime_checkable
class SecretCipher(Protocol):
    """What encrypts secret arguments: `App(secret_cipher=...)`. `pgworkers.crypto.FernetCipher` is one."""

    def encrypt(self, data: bytes, /) -> bytes:
        """Return ASCII text."""
        raise NotImplementedError

    def decrypt(self, data: bytes, /) -> bytes:
        """Return what `encrypt` got, or raise ValueError."""
        raise NotImplementedError


def wrap_secret(task: str, parameter: str, value: Any, cipher: SecretCipher | None) -> dict[str, Any]:
    """Return what is stored for a secret value, which is plain data or msgspec.Raw."""
    if cipher is None:
        return {SECRET_KEY: value}
    data = msgspec.json.encode([task, parameter, value])
    return {SECRET_KEY: {ENCRYPTED_KEY: cipher.encrypt(data).decode("ascii")}}


def unwrap_secret(task: str, parameter: str, raw: bytes, cipher: SecretCipher | None) -> bytes:
    """Return the JSON text of a secret value. Plain values that another program inserted are accepted.

    ValueError if it cannot be decrypted.
    """
    wrapped = _read_key(raw, SECRET_KEY)
    if wrapped is None:
        return raw
    encrypted = _read_key(wrapped, ENCRYPTED_KEY)
    if encrypted is None:
        return wrapped
    if cipher is None:
        raise ValueError("it is encrypted, and this app has no secret_cipher")
    try:
        data = cipher.decrypt(msgspec.json.decode(encrypted, type=str).encode())
        found_task, found_parameter, value = msgspec.json.decode(data, type=tuple[str, str, msgspec.Raw])
    except Exception as exc:
        raise ValueError(
            f"it cannot be decrypted ({type(exc).__name__}); is its key still among those of the cipher?"
        ) from None
    if (found_task, found_parameter) != (task, parameter):
        raise ValueError("it was encrypted for another task or parameter")
    return bytes(value)


def _read_key(raw: bytes, key: str) -> bytes | None:
    """Return the JSON text below `key` if that is the only key of an object."""
    if raw.lstrip()[:1] != b"{":
        return None
    try:
        found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return None
    return bytes(found[key]) if len(found) == 1 and key in found else None


def hide_secrets(args: Any, names: Collection[str] = ()) -> Any:
    """Return arguments without the values of secrets. `names`: parameters that are secret even without a mark."""
    if not isinstance(args, Mapping):
        return args
    return {
        name: HIDDEN_TEXT if name in names or _is_wrapped(value) else value for name, value in args.items()
    }


def hide_secrets_in_json(args: str, names: Collection[str] = ()) -> str:
    """`hide_secrets` for the JSON text of arguments. Arguments without secrets are returned as they are."""
    if f'"{SECRET_KEY}"' not in args and not any(f'"{name}"' in args for name in names) and "\\u" not in args:
        return args
    try:
        values = json.loads(args)
    except (ValueError, RecursionError):
        return ""
    hidden = hide_secrets(values, names)
    return args if hidden == values else json.dumps(hidden, ensure_ascii=False, separators=(",", ":"))


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and SECRET_KEY in value


def secret_texts(args: bytes, names: Collection[str], open_secret: Any) -> list[str]:
    """Return the texts within the secret arguments of a job, the longest first, to be removed from its errors."""
    found: set[str] = set()
    try:
        values = msgspec.json.decode(args, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return []
    for name in names:
        if name in values:
            try:
                todo = [msgspec.json.decode(open_secret(name, bytes(values[name])))]
            except (ValueError, msgspec.DecodeError):
                continue
            while todo:
                item = todo.pop()
                if isinstance(item, str):
                    found.update({item, *item.splitlines()})
                elif isinstance(item, dict):
                    todo.extend(item.values())
                elif isinstance(item, list):
                    todo.extend(item)
                elif isinstance(item, int) and not isinstance(item, bool):
                    found.add(str(item))
    long = (text for text in found if len(text) >= MIN_SCRUBBED_CHARACTERS)
    return sorted(long, key=len, reverse=True)


def scrub(text: str | None, secrets: Collection[str]) -> str | None:
    """Replace secrets in a text, also where Python or JSON has escaped them."""
    if not text:
        return text
    for secret in secrets:
        for form in {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]}:
            text = text.replace(form, HIDDEN_TEXT)
    return text


def read_secret_names(value: Any, *, what: str) -> tuple[str, ...]:
    """Read `secret=` of a task: the names of its secret parameters."""
    if value is None:
        return ()
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise UsageError(f'{what}: {value!r} is not a list of parameters; write ["token"]')
    return tuple(dict.fromkeys(value))
