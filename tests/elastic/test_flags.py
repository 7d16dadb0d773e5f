"""torchrun's flags and variables, compared with torchrun's own parser."""

from __future__ import annotations

import sys
from argparse import Namespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.run import get_args_parser

from trainer.elastic.flags import Flags, parse_flags
from trainer.elastic.rendezvous.options import parse_endpoint
from trainer.elastic.rendezvous.round_document import Limits
from trainer.elastic.workers.workers import substitute


def parse(*argv: str, **environ: str) -> Flags:
    return parse_flags([*argv, "script.py", "--lr", "1"], environ)


def torchrun(*argv: str) -> Namespace:
    return get_args_parser().parse_args([*argv, "script.py", "--lr", "1"])


@pytest.mark.parametrize(
    ("argv", "field", "theirs"),
    [
        (["--max-restarts=3"], "max_restarts", "max_restarts"),
        (["--max_restarts", "3"], "max_restarts", "max_restarts"),
        (["--monitor-interval=0.5"], "look_every_s", "monitor_interval"),
        (["--role=reader"], "role", "role"),
        (["--rdzv-id=7", "--rdzv-endpoint=a:1", "--rdzv-backend=c10d"], "run_id", "rdzv_id"),
        (["--node-rank=1", "--nnodes=2"], "node_rank", "node_rank"),
        (["--local-addr=10.0.0.1"], "local_addr", "local_addr"),
        (["-r", "3"], "redirects", "redirects"),
        (["-t", "0:1,1:2"], "tee", "tee"),
        (["--log-dir=/x"], "log_dir", "log_dir"),
        (["--local-ranks-filter=0"], "local_ranks_filter", "local_ranks_filter"),
        (["--virtual-local-rank"], "virtual_local_rank", "virtual_local_rank"),
        (["--nproc_per_node", "4"], "workers", "nproc_per_node"),
        ([], "max_restarts", "max_restarts"),
        ([], "look_every_s", "monitor_interval"),
        ([], "role", "role"),
        ([], "workers", "nproc_per_node"),
    ],
)
def test_a_flag_means_the_same_as_for_torchrun(argv: list[str], field: str, theirs: str) -> None:
    if theirs == "virtual_local_rank" and not hasattr(torchrun(), theirs):
        pytest.skip("torchrun of this torch has no --virtual-local-rank")
    assert getattr(parse(*argv), field) == getattr(torchrun(*argv), theirs)


def test_every_flag_of_torchrun_is_known() -> None:
    for action in get_args_parser()._actions:
        if action.dest in ("help", "training_script", "training_script_args"):
            continue
        for spelling in action.option_strings:
            value = [] if action.nargs == 0 else ["1"]
            assert action.dest.replace("_", "-") in (refusal_of(spelling, *value) or action.dest.replace("_", "-"))


def refusal_of(*argv: str) -> str | None:
    """The refusal, which names the flag. An unknown flag would raise SystemExit."""
    try:
        parse(*argv)
    except ValueError as refusal:
        return str(refusal)
    return None


def test_a_variable_sets_a_flag_and_the_flag_overrides_it() -> None:
    assert parse(PET_MAX_RESTARTS="4").max_restarts == 4
    assert parse("--max-restarts=1", PET_MAX_RESTARTS="4").max_restarts == 1
    assert parse(PET_STANDALONE="1", PET_NPROC_PER_NODE="2").workers == "2"


@pytest.mark.parametrize(("text", "is_on"), [("1", True), ("2", True), ("0", False), ("", False)])
def test_the_variable_of_a_switch_is_a_number_as_for_torchrun(text: str, is_on: bool) -> None:
    assert parse(PET_VIRTUAL_LOCAL_RANK=text).virtual_local_rank is is_on
    with pytest.raises(ValueError, match="PET_STANDALONE"):
        parse(PET_STANDALONE="yes")


@pytest.mark.parametrize(
    ("endpoint", "place"),
    [
        ("a", ("a", 7)),
        ("a:1", ("a", 1)),
        ("[::1]:1", ("::1", 1)),
        ("::1", ("::1", 7)),
        ("fe80::1%eth0", ("fe80::1%eth0", 7)),
    ],
)
def test_an_endpoint_may_be_an_ipv6_address(endpoint: str, place: tuple[str, int]) -> None:
    assert parse_endpoint(endpoint, default_port=7) == place


def test_the_command_of_one_worker() -> None:
    assert parse().command == (sys.executable, "-u", "script.py", "--lr", "1")
    assert parse("-m").command == (sys.executable, "-u", "-m", "script.py", "--lr", "1")
    assert parse("--no-python").command == ("script.py", "--lr", "1")
    assert parse(PYTHON_EXEC="/opt/python").command[0] == "/opt/python"


# By default argparse takes the beginning of a flag for an abbreviation, even among the script's arguments.
OPTIONS = st.from_regex(r"--?(n|no|nnodes|nproc|log|m|max|r|rdzv|s|e|t|x)[a-z_-]{0,8}(=[a-z0-9]{0,3})?", fullmatch=True)


@given(st.lists(st.one_of(OPTIONS, st.sampled_from(["--", "-", "9", ""])), max_size=5))
def test_the_arguments_of_a_script_are_its_own(arguments: list[str]) -> None:
    found = parse_flags(["--nnodes=2", "--rdzv-endpoint=h:1", "script.py", "a", *arguments], {}).command
    assert found == (sys.executable, "-u", "script.py", "a", *arguments)


def test_pass_local_rank_gives_each_worker_its_local_rank() -> None:
    command = parse("--pass-local-rank").command
    assert substitute(command, 3) == [sys.executable, "-u", "script.py", "--local-rank=3", "--lr", "1"]


def test_nodes_and_endpoints() -> None:
    assert parse("--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=a:1").limits == Limits(
        min_nodes=2, max_nodes=4
    )
    assert parse().endpoint == ""
    assert parse("--standalone", "--rdzv-endpoint=a:1").endpoint == ""
    static = parse("--nnodes=2", "--master-addr=a", "--master-port=7")
    assert (static.backend, static.endpoint) == ("static", "a:7")
    assert parse("--nnodes=2").endpoint == "127.0.0.1:29500"


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--nnodes=2:1"], "--nnodes"),
        (["--nnodes=x"], "--nnodes"),
        (["--nproc-per-node=0"], "--nproc-per-node"),
        (["--nproc-per-node=some"], "--nproc-per-node"),
        (["--max-restarts=many"], "--max-restarts"),
        (["--monitor-interval=x"], "--monitor-interval"),
        (["--rdzv-backend=etcd", "--rdzv-endpoint=a:1"], "etcd"),
        (["--nnodes=2", "--rdzv-backend=c10d"], "--rdzv-endpoint"),
        (["--nnodes=1:2", "--master-port=1"], "static"),
        (["--rdzv-conf=x"], "--rdzv-conf"),
        (["--standalone", "--nnodes=2"], "--standalone"),
        (["--no-python", "-m"], "--no-python"),
        (["--no-python", "--pass-local-rank"], "--pass-local-rank"),
        (["--logs-specs=mine"], "--log-dir"),
        (["--numa-binding=node"], "numactl"),
        (["--tee=x"], "--tee"),
        (["-r", "0:1,1:9"], "--redirects"),
        (["--redirects="], "--redirects"),
        (["--local-ranks-filter=a"], "--local-ranks-filter"),
        (["--signals-to-handle=SIGFOO"], "SIGFOO"),
        (["--signals-to-handle=SIGTERM,SIGKILL"], "SIGKILL"),
        (["--monitor-interval=nan"], "--monitor-interval"),
        (["--shutdown-timeout=inf"], "--shutdown-timeout"),
        (["--max-restarts=-1"], "--max-restarts"),
        (["--start-method=thread"], "--start-method"),
        (["--nnodes=2", "--node-rank=2"], "--node-rank"),
        (["--nnodes=2", "--node-rank=-1"], "--node-rank"),
        (["--nnodes=2", "--master-port=x"], "--master-port"),
        (["--nnodes=2", "--master-port=65536"], "--master-port"),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=a:b:c", "--nnodes=2"], "endpoint"),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=a:x", "--nnodes=2"], "endpoint"),
        (["--rdzv-conf=timeout=x"], "timeout"),
        (["--rdzv-conf=keep_alive_max_attempt=inf"], "keep_alive_max_attempt"),
        (["--rdzv-conf=is_host=maybe"], "is_host"),
    ],
)
def test_an_invalid_value_is_refused_with_the_name_of_its_flag(argv: list[str], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        parse(*argv)
