"""Prove the service against its OpenAPI document, as callers of several roles, on SQLite and on PostgreSQL.

Exit 1 when an answer was a 5xx, had a status, type or shape that the document does not name, when somebody without a
token was let in, when the service's log holds an error, or when an operation was never proved at all; what was sent is
printed as a curl command.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from deploy.dev.conformance.document import closed_operations, count_good_answers, unknown_parameters
from deploy.dev.conformance.stage import Stage, set_up
from deploy.dev.conformance.streams import prove_streams, streaming_paths
from deploy.dev.conformance.tool import SCHEMATHESIS, NoTool, install_tool
from deploy.dev.databases import scratch_database
from deploy.dev.postgres import NoPostgres, postgres_server

ROLES = ("admin", "operator", "submitter", "viewer", "worker", "nobody")
DATABASES = ("sqlite", "postgres")
_HERE = Path(__file__).parent
# Not among the checks: a spec that fits its schema may name what is not there, and is then refused with 422
# (positive_data_acceptance); the schema of a spec is narrower than what is taken, as in `nodes: 2` for "2"
# (negative_data_rejection).
_CHECKS = (
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


_NOT_AN_ADMINS = frozenset({"/api/v1/reports"})  # agents' alone
_ENOUGH_EXAMPLES = 10  # that each operation has to succeed once; of fewer it is a matter of luck


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends it early leaves no service behind
    failed = []
    try:
        program = install_tool(SCHEMATHESIS) / "schemathesis"
        for database in options.databases:
            with _stage(database) as stage:
                # Who may what is no question of the database: on the second one an admin is enough.
                roles = options.roles if database == options.databases[0] else options.roles[:1]
                failed += [f"{database}, {role}" for role in roles if not _prove(program, stage, role, options)]
                failed += [f"{database}: {line}" for line in _errors(stage)]
    except (NoTool, NoPostgres) as error:
        sys.exit(str(error))
    for each in failed:
        print(f"FAILED {each}", flush=True)
    sys.exit(1 if failed else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.dev.conformance", description=__doc__)
    examples = int(os.environ.get("CONFORMANCE_EXAMPLES", "10"))
    parser.add_argument("--examples", type=int, default=examples, help="for each operation, or CONFORMANCE_EXAMPLES")
    parser.add_argument("--databases", nargs="+", choices=DATABASES, default=DATABASES)
    parser.add_argument("--roles", nargs="+", choices=ROLES, default=ROLES)
    parser.add_argument("--coverage", action="store_true", help="each boundary of each field too: minutes")
    parser.add_argument("--seed", type=int, default=None, help="repeats what was generated")
    parser.add_argument("--only", default=None, help="a regular expression of paths")
    return parser.parse_args()


@contextmanager
def _stage(database: str) -> Iterator[Stage]:
    with (
        tempfile.TemporaryDirectory(prefix="conformance-") as folder,
        _database(database) as url,
        set_up(Path(folder) / "runs", url) as stage,
    ):
        yield stage


@contextmanager
def _database(name: str) -> Iterator[str | None]:
    """The URL of an empty PostgreSQL; None for SQLite. Raises NoPostgres."""
    if name == "sqlite":
        yield None
        return
    with postgres_server() as server, scratch_database(server) as url:
        yield url


def _prove(program: Path, stage: Stage, role: str, options: argparse.Namespace) -> bool:
    began, before = time.monotonic(), _good_answers(stage)
    url, token = stage.service.url, stage.token(role)
    document = httpx.get(f"{url}/openapi.json", timeout=30).raise_for_status().json()
    wrong = [f"no value is known of {{{name}}}" for name in unknown_parameters(document, stage.known)]
    wrong += prove_streams(url, token, document, stage.known)
    with tempfile.TemporaryDirectory(prefix="schemathesis-") as folder:
        done = subprocess.run(
            _command(program, f"{url}/openapi.json", token, streaming_paths(document), role, options),
            cwd=folder,  # it leaves examples behind
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
                "SCHEMATHESIS_HOOKS": str(_HERE / "hooks.py"),
                "CONFORMANCE_KNOWN": json.dumps(stage.known),
            },
            stdin=subprocess.DEVNULL,
            check=False,
        )
    if role == "admin" and options.only is None and options.examples >= _ENOUGH_EXAMPLES:
        wrong += [f"{name} has never succeeded: nothing was proved of it" for name in _unreached(stage, document)]
    if role == "nobody":
        let_in = closed_operations(document) & (_good_answers(stage) - before).keys()
        wrong += [f"{method} {path} let somebody in without a token" for method, path in sorted(let_in)]
    for sentence in wrong:
        print(sentence, flush=True)
    print(f"== {role}: {time.monotonic() - began:.0f} s", flush=True)
    return not wrong and done.returncode == 0


def _command(
    program: Path, document: str, token: str | None, streams: list[str], role: str, options: argparse.Namespace
) -> list[str]:
    return [
        *(str(program), "--config-file", str(_HERE / "schemathesis.toml"), "run", document),
        *("--checks", ",".join(_CHECKS)),
        *("--max-examples", str(options.examples)),
        *("--phases", _phases(role, options)),
        *("--workers", "2"),
        *([] if token is None else ["--header", f"Authorization: Bearer {token}"]),
        *([] if options.seed is None else ["--seed", str(options.seed)]),
        *([] if options.only is None else ["--include-path-regex", options.only]),
        *(word for path in streams for word in ("--exclude-path", path)),
    ]


def _phases(role: str, options: argparse.Namespace) -> str:
    """Only an admin gets through all of a sequence; coverage is thousands of requests, whatever `--examples` says."""
    if role != "admin":
        return "examples,fuzzing"
    return "examples,coverage,fuzzing,stateful" if options.coverage else "examples,fuzzing,stateful"


def _unreached(stage: Stage, document: dict[str, Any]) -> list[str]:
    """Operations that an admin never got a good answer from."""
    good = _good_answers(stage).keys()
    known = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    return sorted(f"{method} {path}" for method, path in known - good if path not in _NOT_AN_ADMINS)


def _good_answers(stage: Stage) -> Counter[tuple[str, str]]:
    """By method and path, as the service has counted them."""
    told = httpx.get(f"{stage.service.url}/metrics", headers={"Authorization": f"Bearer {stage.token('admin')}"})
    return count_good_answers(told.raise_for_status().text)


def _errors(stage: Stage) -> list[str]:
    """What the service says of its own defects, seen by a client or not."""
    return [line for line in stage.service.printed().splitlines() if '"level": "error"' in line or "Traceback" in line]


if __name__ == "__main__":
    main()
