"""Encryption of secret arguments at rest. It needs the extra `crypto`: `pip install pgworkers[crypto]`."""

from __future__ import annotations

from collections.abc import Iterable

from pgworkers.errors import UsageError


class FernetCipher:
    """Encrypts with the first of several Fernet keys and decrypts with all of them, so that keys can be rotated.

    To rotate: add a new key behind the old one in every process, then put it in front, and remove the old key when no job is
    left that was enqueued with it. A key is made by `cryptography.fernet.Fernet.generate_key()`.
    """

    def __init__(self, keys: Iterable[str | bytes]) -> None:
        try:
            from cryptography.fernet import Fernet, InvalidToken, MultiFernet
        except ImportError:
            raise UsageError(
                "FernetCipher needs the package cryptography; install pgworkers[crypto]"
            ) from None
        given = [keys] if isinstance(keys, (str, bytes)) else list(keys)
        if not given:
            raise UsageError("FernetCipher: no key; make one with Fernet.generate_key()")
        try:
            fernets = [Fernet(key.strip()) for key in given]
        except (ValueError, TypeError, AttributeError):
            # The error of the library is not shown: it may quote the key.
            raise UsageError(
                "FernetCipher: a key is not 32 bytes in URL-safe base64; make one with Fernet.generate_key()"
            ) from None
        self._fernet = MultiFernet(fernets)
        self._invalid = InvalidToken

    def encrypt(self, data: bytes, /) -> bytes:
        """Encrypt with the first key."""
        return self._fernet.encrypt(data)

    def decrypt(self, data: bytes, /) -> bytes:
        """Decrypt with the key that fits. ValueError if none does."""
        try:
            return self._fernet.decrypt(data)
        except self._invalid:
            raise ValueError("no key of this cipher decrypts it") from None

    def __repr__(self) -> str:
        return "<FernetCipher>"
