"""A client and the service read the same settings in the same way."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.client_settings import ClientSettings, load_client_settings
from orchestrator.domain.errors import ConfigurationError
from orchestrator.settings import load_settings

FIELDS = sorted(ClientSettings.model_fields)
TEXTS = st.one_of(
    st.sampled_from(["", "8701", "-1", "65536", "1.5", "x", "/srv", "~", "null", "[]", "sixteen letters!", "a" * 501]),
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")),
)
TEXTS_AND_NUMBERS = st.one_of(TEXTS, st.integers(-2, 70_000), st.booleans())


@given(
    variables=st.dictionaries(st.sampled_from(FIELDS), TEXTS),
    written=st.dictionaries(st.sampled_from(FIELDS), TEXTS_AND_NUMBERS),
    lower=st.booleans(),
)
@example({"token": "short"}, {}, False)
@example({}, {"port": "x"}, True)
def test_client_and_service_agree(
    tmp_path_factory: pytest.TempPathFactory, variables: dict[str, str], written: dict[str, object], lower: bool
) -> None:
    config = tmp_path_factory.getbasetemp() / "orchestrator.toml"
    config.write_text("".join(f"{field} = {json.dumps(value)}\n" for field, value in written.items() if _toml(value)))
    named = {f"ORCHESTRATOR_{field.upper()}": value for field, value in variables.items()}
    environment = {name.lower() if lower else name: value for name, value in named.items()}
    environment |= {"ORCHESTRATOR_CONFIG": str(config), "HOME": "/home/a"}
    with mock.patch.dict(os.environ, environment, clear=True):
        assert _read(load_client_settings) == _read(load_settings)


def _read(load: Callable[[], ClientSettings]) -> object:
    """Return the shared settings and which of them were given, or the error."""
    try:
        found = load()
    except ConfigurationError as error:
        return str(error)
    return {name: getattr(found, name) for name in FIELDS}, found.model_fields_set


def _toml(value: object) -> bool:
    """Whether JSON writes the value as TOML does; it writes characters beyond U+FFFF as two surrogates."""
    return not isinstance(value, str) or all(character <= "\uffff" and character != "\x7f" for character in value)


@pytest.mark.parametrize("content", [b"port = ", b"\xff", None])
def test_a_settings_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    config = tmp_path / "orchestrator.toml"
    config.mkdir() if content is None else config.write_bytes(content)
    monkeypatch.setenv("ORCHESTRATOR_CONFIG", str(config))
    with pytest.raises(ConfigurationError, match=re.escape(str(config))):
        load_client_settings()
