"""The service's keys: from a variable, from a file, or made once and kept in the run directory."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.fernet import Fernet

from orchestrator.domain.errors import ConfigurationError

_HOW = "each is 32 random bytes in URL-safe base64, as `openssl rand -base64 32 | tr +/ -_` prints them"


def parse_keys(text: str, source: str) -> tuple[bytes, ...]:
    """Keys that stand between commas or line ends. Raises ConfigurationError, which never tells a key."""
    words = text.replace(",", "\n").split()
    if not words:
        raise ConfigurationError(f"{source} holds no key; {_HOW}")
    for number, word in enumerate(words, 1):
        try:
            Fernet(word.encode())
        except ValueError:
            raise ConfigurationError(f"{source}: its key {number} is none; {_HOW}") from None
    return tuple(word.encode() for word in words)


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Raises ConfigurationError, also for a file that others may read."""
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigurationError(f"{path} holds the service's keys and others may read it: chmod 600 {path}")
        return parse_keys(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}, which is to hold the service's keys: {error}") from None


def keep_keys(path: Path) -> tuple[bytes, ...]:
    """The keys of the file; made at the first start. Of several services that start at once, one makes it."""
    if not path.exists():
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(Fernet.generate_key() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # whole, and never over another one's
        except FileExistsError:
            pass
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
        finally:
            temporary.unlink(missing_ok=True)
    return read_keys(path)
