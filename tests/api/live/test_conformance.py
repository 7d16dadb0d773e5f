"""A real service against its own OpenAPI document, as callers of several roles, by Schemathesis.

No answer is a 5xx or has a status, type or shape that the document does not declare. No operation answers without a
token. The service logs no error. Every operation succeeds at least once. Failing requests are printed as curl commands.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.dev.databases import scratch_database
from deploy.dev.postgres import NoPostgres, postgres_server
from tests.api.live.stage import Stage, set_up
from tests.api.openapi import (
    closed_operations,
    count_good_answers,
    prove_streams,
    streaming_paths,
    unknown_parameters,
)
from tests.api.tools import SCHEMATHESIS, NoTool, install_tool

pytestmark = pytest.mark.timeout(7200)

HERE = Path(__file__).parent
# Two checks do not apply. positive_data_acceptance: a spec that fits its schema may name a missing object, which is a
# 422. negative_data_rejection: the service accepts more than the schema of a spec, such as `nodes: 2` for "2".
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "missing_required_header",
    "unsupported_method",
    "use_after_free",
    "ensure_resource_availability",
)
NOT_AN_ADMINS = frozenset({"/api/v1/reports"})  # only for agents
ENOUGH_EXAMPLES = 10  # with fewer, an operation may succeed only by luck


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.getoption
    databases = option("--databases", default=["sqlite"])
    if "role" in metafunc.fixturenames:
        # Permissions do not depend on the database, so the second one is tested as an admin only.
        roles = option("--roles", default=["admin"])
        both = [(databases[0], role) for role in roles] + [(other, roles[0]) for other in databases[1:]]
        metafunc.parametrize(("stage", "role"), both, indirect=["stage"], scope="module")
    else:
        metafunc.parametrize("stage", databases, indirect=True, scope="module")


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("conformance")
    if request.param == "sqlite":
        with set_up(folder / "runs", None) as stage:
            yield stage
        return
    try:
        with postgres_server() as server, scratch_database(server) as url, set_up(folder / "runs", url) as stage:
            yield stage
    except NoPostgres as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def program() -> Path:
    try:
        return install_tool(SCHEMATHESIS) / "schemathesis"
    except NoTool as error:
        pytest.fail(str(error))


def test_every_answer_matches_the_openapi_document(
    stage: Stage, role: str, program: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    before, url, token = good_answers(stage), stage.service.url, stage.token(role)
    document = httpx.get(f"{url}/openapi.json", timeout=30).raise_for_status().json()
    assert unknown_parameters(document, stage.known) == [], "path parameters without a known value"
    wrong = prove_streams(url, token, document, stage.known)
    done = subprocess.run(
        command(program, f"{url}/openapi.json", token, streaming_paths(document), role, pytestconfig),
        cwd=tmp_path,  # it leaves examples behind
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "SCHEMATHESIS_HOOKS": str(HERE / "hooks.py"),
            "CONFORMANCE_KNOWN": json.dumps(stage.known),
        },
        stdin=subprocess.DEVNULL,
        check=False,
    )
    option = pytestconfig.getoption
    if role == "admin" and option("--only") is None and option("--examples") >= ENOUGH_EXAMPLES:
        wrong += [f"{name} has never succeeded: nothing was proved of it" for name in unreached(stage, document)]
    if role == "nobody":
        let_in = closed_operations(document) & (good_answers(stage) - before).keys()
        wrong += [f"{method} {path} needs no token" for method, path in sorted(let_in)]
    assert wrong == []
    assert done.returncode == 0, "Schemathesis printed its findings above"


def test_the_service_logs_no_unexpected_errors(stage: Stage) -> None:
    """Runs after the tests of all roles on this database."""
    told = stage.service.printed().splitlines()
    assert [line for line in told if '"level": "error"' in line or "Traceback" in line] == []


def command(
    program: Path, document: str, token: str | None, streams: list[str], role: str, config: pytest.Config
) -> list[str]:
    option = config.getoption
    return [
        *(str(program), "--config-file", str(HERE / "schemathesis.toml"), "run", document),
        *("--checks", ",".join(CHECKS)),
        *("--max-examples", str(option("--examples"))),
        *("--phases", phases(role, is_covering=option("--coverage"))),
        *("--workers", "2"),
        *([] if token is None else ["--header", f"Authorization: Bearer {token}"]),
        *([] if option("--seed") is None else ["--seed", str(option("--seed"))]),
        *([] if option("--only") is None else ["--include-path-regex", option("--only")]),
        *(word for path in streams for word in ("--exclude-path", path)),
    ]


def phases(role: str, *, is_covering: bool) -> str:
    """Only an admin may call all of a sequence. Coverage sends thousands of requests, whatever `--examples` says."""
    if role != "admin":
        return "examples,fuzzing"
    return "examples,coverage,fuzzing,stateful" if is_covering else "examples,fuzzing,stateful"


def unreached(stage: Stage, document: dict[str, Any]) -> list[str]:
    """Return the operations that never succeeded for an admin."""
    good = good_answers(stage).keys()
    known = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    return sorted(f"{method} {path}" for method, path in known - good if path not in NOT_AN_ADMINS)


def good_answers(stage: Stage) -> Counter[tuple[str, str]]:
    """Return the service's counts of successful answers by method and path."""
    told = httpx.get(f"{stage.service.url}/metrics", headers={"Authorization": f"Bearer {stage.token('admin')}"})
    return count_good_answers(told.raise_for_status().text)
