"""The service's keys: from a variable, from a file, or generated once and stored in the run directory."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from orchestrator.domain.errors import ConfigurationError

_KEY_BYTES = 32
_HOW = "each is 32 random bytes in URL-safe base64, as `openssl rand -base64 32 | tr +/ -_` prints them"


def parse_keys(text: str, source: str) -> tuple[bytes, ...]:
    """Parse keys that commas or line ends separate. Raises ConfigurationError, which never contains a key."""
    words = text.replace(",", "\n").split()
    if not words:
        raise ConfigurationError(f"{source} contains no key; {_HOW}")
    for number, word in enumerate(words, 1):
        if not _is_key(word):
            raise ConfigurationError(f"{source}: key {number} is not valid; {_HOW}")
    return tuple(word.encode() for word in words)


def _is_key(word: str) -> bool:
    try:
        return len(base64.urlsafe_b64decode(word)) == _KEY_BYTES
    except ValueError:
        return False


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Read the keys of a file. Raises ConfigurationError, for example if other users may read it."""
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigurationError(f"{path} contains the service's keys and others may read it: chmod 600 {path}")
        return parse_keys(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the service's keys from {path}: {error}") from None


def keep_keys(path: Path) -> tuple[bytes, ...]:
    """Return the keys of the file, which the first start creates. If several services start at once, one creates it."""
    if not path.exists():
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(base64.urlsafe_b64encode(os.urandom(_KEY_BYTES)) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # atomic, and never replaces the file of another service
        except FileExistsError:
            pass
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
        finally:
            temporary.unlink(missing_ok=True)
    return read_keys(path)
