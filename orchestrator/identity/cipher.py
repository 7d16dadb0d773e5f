"""Seal texts with the service's keys, by Fernet (AES-128-CBC and HMAC-SHA256; cryptography.io/en/latest/fernet)."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet


class Cipher:
    """The first key seals, and each of them opens."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._newest = Fernet(keys[0])
        self._all = MultiFernet([self._newest, *map(Fernet, keys[1:])])

    def seal(self, content: bytes) -> str:
        return self._all.encrypt(content).decode()

    def open(self, sealed: str) -> bytes | None:
        """Return None if no key opens it."""
        try:
            return self._all.decrypt(sealed.encode())
        except InvalidToken:
            return None

    def is_newest(self, sealed: str) -> bool:
        """Whether the first key sealed it."""
        try:
            self._newest.decrypt(sealed.encode())
        except InvalidToken:
            return False
        return True
