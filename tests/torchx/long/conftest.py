from __future__ import annotations

import os

import pytest

from tests.conftest import service  # noqa: F401 - the real service; the folder above has a fake
from tests.torchx.installed import NIGHTLY, STABLE, Installed, NoEnvironment, install


@pytest.fixture(scope="session", params=[STABLE, NIGHTLY])
def installed(request: pytest.FixtureRequest) -> Installed:
    """Skip if there is no package index. In CI fail."""
    try:
        return install(request.param)
    except NoEnvironment as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
