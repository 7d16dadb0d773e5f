"""torchrun's flags and variables, parsed without torch. An unsupported flag is refused with an alternative.

A flag may be written with dashes or underscores. It overrides its variable `PET_<NAME>`
(torch.distributed.argparse_util).
"""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import uuid
from argparse import REMAINDER, ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.elastic.rendezvous.options import LONGEST_S, parse_endpoint, parse_is_host, parse_timing
from trainer.elastic.rendezvous.round_document import Limits

_MASTER_PORT = 29500  # torchrun's own default
_NPROC_WORDS = ("auto", "cpu", "gpu", "xpu")
_BACKENDS = ("c10d", "static")
_START_METHODS = ("spawn", "fork", "forkserver")
_UNSTOPPABLE = ("SIGKILL", "SIGSTOP")  # signal(7): they cannot be caught
_STREAMS = re.compile(r"[0-3]|\d:[0-3](,\d:[0-3])*")  # torch.distributed.elastic.multiprocessing.Std.from_str
LOCAL_RANK = "${local_rank}"  # torch's macro: each worker's local rank, in an argument

# name, default, help. The order is that of `torchrun --help`.
_OPTIONS: tuple[tuple[str, str | None, str], ...] = (
    ("nnodes", "1:1", "number of nodes, or MIN:MAX"),
    ("nproc-per-node", "1", "workers on this node: a number, auto, gpu, cpu or xpu"),
    ("rdzv-backend", "static", "c10d or static"),
    ("rdzv-endpoint", "", "HOST:PORT of the rendezvous store"),
    ("rdzv-id", "none", "name of the run, the same on all nodes"),
    ("rdzv-conf", "", "KEY=VALUE,... for the rendezvous; docs/elasticrun.md has the keys"),
    ("max-restarts", "0", "restarts of the worker group before it fails"),
    ("monitor-interval", "0.1", "seconds between two checks of the workers"),
    ("start-method", "spawn", "no effect on scripts; accepted for compatibility"),
    ("event-log-handler", "null", "torch's event log; only null"),
    ("role", "default", "ROLE_NAME of the workers"),
    ("log-dir", None, "folder for the logs of --redirects and --tee"),
    ("redirects", "0", "streams to write to files: 0 none, 1 stdout, 2 stderr, 3 both; or RANK:STREAMS,..."),
    ("tee", "0", "streams to write to files and the console"),
    ("local-ranks-filter", "", "local ranks whose output is shown on the console: 0,1,..."),
    ("node-rank", "0", "rank of this node, with --rdzv-backend=static"),
    ("master-addr", "127.0.0.1", "address of the node with rank 0, with --rdzv-backend=static"),
    ("master-port", None, f"port on that node, with --rdzv-backend=static (default {_MASTER_PORT})"),
    ("local-addr", None, "address at which other nodes reach this one"),
    ("logs-specs", None, "torch's plugin for logs; not supported"),
    ("numa-binding", None, "not supported"),
    ("duplicate-stdout-filters", "", "not supported"),
    ("duplicate-stderr-filters", "", "not supported"),
    ("log-line-prefix-template", "", "not supported"),
    ("print-completion", "", "not supported"),
    ("signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "signals that stop the workers"),
    ("shutdown-timeout", None, "seconds between SIGTERM and SIGKILL (default TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30)"),
)
_SHORT = {"redirects": "-r", "tee": "-t", "module": "-m"}
_SWITCHES: tuple[tuple[str, str], ...] = (
    ("standalone", "one node, without rendezvous flags"),
    ("module", "the script is a module, as with python -m"),
    ("no-python", "run the script directly, without python"),
    ("run-path", "run the script by its path, which is the default"),
    ("virtual-local-rank", "give each worker LOCAL_RANK=0 and only its own device"),
    ("pass-local-rank", "pass --local-rank=N to the script, as torch.distributed.launch does"),
    ("use-env", "no effect: LOCAL_RANK is always set; accepted for compatibility"),
)
# What to use instead of a flag that is refused.
_UNSUPPORTED = {
    "logs-specs": "use --log-dir, --redirects and --tee",
    "numa-binding": "start the script as --no-python numactl ... python SCRIPT",
    "duplicate-stdout-filters": "use --tee and grep",
    "duplicate-stderr-filters": "use --tee and grep",
    "log-line-prefix-template": "use --tee and sed",
    "print-completion": "torchrun prints completions for the same flags",
}


@dataclass(frozen=True, kw_only=True)
class Flags:
    """torchrun's flags, parsed. Times are in seconds. `workers` is a number or a word like `gpu`."""

    command: tuple[str, ...]  # of one worker
    limits: Limits
    workers: str
    backend: str
    endpoint: str  # empty: one node, which needs no endpoint
    run_id: str
    conf: Mapping[str, str]
    node_rank: int
    local_addr: str | None
    max_restarts: int
    look_every_s: float
    stop_timeout_s: float
    role: str
    log_dir: str | None
    redirects: str
    tee: str
    local_ranks_filter: str
    signals: tuple[str, ...]
    virtual_local_rank: bool = False


def parse_flags(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Flags:
    """Raises SystemExit as argparse does, and ValueError for invalid values."""
    args = vars(_build_parser(environ).parse_args(argv))
    _refuse_unsupported(args)
    limits = _parse_nodes(args["nnodes"])
    workers = args["nproc_per_node"]
    if workers not in _NPROC_WORDS and (not workers.isdecimal() or int(workers) < 1):
        raise ValueError(
            f"--nproc-per-node is {workers!r}, must be a number from 1 or one of {', '.join(_NPROC_WORDS)}"
        )
    backend, endpoint = _settle_rendezvous(args, limits)
    node_rank = _integer("node-rank", args["node_rank"])
    if backend == "static" and not 0 <= node_rank < limits.max_nodes:
        raise ValueError(f"--node-rank is {node_rank}, must be below --nnodes, which is {limits.max_nodes}")
    shutdown = args["shutdown_timeout"] or environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30")
    return Flags(
        command=_build_command(args, environ),
        limits=limits,
        workers=workers,
        backend=backend,
        endpoint=endpoint,
        run_id=args["rdzv_id"] if args["rdzv_id"] != "none" else _run_id(endpoint),
        conf=_parse_conf(args["rdzv_conf"]),
        node_rank=node_rank,
        local_addr=args["local_addr"] or None,
        max_restarts=_integer("max-restarts", args["max_restarts"], least=0),
        look_every_s=_seconds("monitor-interval", args["monitor_interval"]),
        stop_timeout_s=_seconds("shutdown-timeout", shutdown),
        role=args["role"],
        log_dir=args["log_dir"] or None,
        redirects=_streams("redirects", args["redirects"]),
        tee=_streams("tee", args["tee"]),
        local_ranks_filter=_ranks("local-ranks-filter", args["local_ranks_filter"]),
        signals=_signals("signals-to-handle", args["signals_to_handle"]),
        virtual_local_rank=args["virtual_local_rank"],
    )


def _build_parser(environ: Mapping[str, str]) -> ArgumentParser:
    description = "A launcher with torchrun's flags and fast, safe restarts: see docs/elasticrun.md"
    # With abbreviations, argparse would also refuse a script's own --n, the beginning of several flags.
    parser = ArgumentParser("elasticrun", description=description, allow_abbrev=False)
    for name, default, text in _OPTIONS:
        inherited = environ.get(_variable(name), default)
        parser.add_argument(*_spellings(name), default=inherited, help=text, metavar="VALUE")
    for name, text in _SWITCHES:
        parser.add_argument(*_spellings(name), action="store_true", default=_switch(name, environ), help=text)
    parser.add_argument("script", help="script, module or program that every worker runs")
    parser.add_argument("arguments", nargs=REMAINDER, help="its arguments")
    return parser


def _spellings(name: str) -> list[str]:
    short = [_SHORT[name]] if name in _SHORT else []
    return [*short, *dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))]


def _variable(name: str) -> str:
    return f"PET_{name.replace('-', '_').upper()}"


def _switch(name: str, environ: Mapping[str, str]) -> bool:
    """Read a switch's variable, which is a number as for torchrun. Raises ValueError."""
    text = environ.get(_variable(name)) or "0"
    if not text.isdecimal():
        raise ValueError(f"{_variable(name)} is {text!r}, must be 0 or 1")
    return int(text) != 0


def _refuse_unsupported(args: Mapping[str, object]) -> None:
    for name, instead in _UNSUPPORTED.items():
        if args[name.replace("-", "_")]:
            raise ValueError(f"elasticrun does not support --{name}; {instead}")
    if args["event_log_handler"] != "null":
        raise ValueError("elasticrun does not support --event-log-handler; in a job the service stores the events")
    if args["start_method"] not in _START_METHODS:
        raise ValueError(f"--start-method is {args['start_method']!r}, must be one of {', '.join(_START_METHODS)}")


def _parse_nodes(text: str) -> Limits:
    """Raises ValueError."""
    least, _, most = text.partition(":")
    if not least.isdecimal() or not (most or least).isdecimal():
        raise ValueError(f"--nnodes is {text!r}, must be a number or MIN:MAX")
    limits = Limits(min_nodes=int(least), max_nodes=int(most or least))
    if not 1 <= limits.min_nodes <= limits.max_nodes:
        raise ValueError(f"--nnodes is {text!r}: MIN must be from 1 to MAX")
    return limits


def _settle_rendezvous(args: Mapping[str, str], limits: Limits) -> tuple[str, str]:
    """The rendezvous backend and its endpoint. A single node without an endpoint uses c10d with an empty one."""
    backend, endpoint, port = args["rdzv_backend"], args["rdzv_endpoint"], args["master_port"]
    alone = backend == "static" and not endpoint and not port and limits.max_nodes == 1
    if args["standalone"] or alone:
        if limits.max_nodes > 1:
            raise ValueError("--standalone is for one node")
        return "c10d", ""
    if backend not in _BACKENDS:
        raise ValueError(f"--rdzv-backend is {backend!r}, must be {' or '.join(_BACKENDS)}")
    if endpoint:
        parse_endpoint(endpoint, _MASTER_PORT)  # only to refuse a wrong one early
    if backend == "static":
        if limits.min_nodes != limits.max_nodes:
            raise ValueError("--rdzv-backend=static needs a fixed number of nodes: --nnodes=N")
        return backend, endpoint or f"{args['master_addr']}:{_port('master-port', port)}"
    if not endpoint and limits.max_nodes > 1:
        raise ValueError("several nodes need --rdzv-endpoint=HOST:PORT, the same on all of them")
    return backend, endpoint


def _run_id(endpoint: str) -> str:
    """The id without --rdzv-id: torchrun's default where nodes share an endpoint, a unique one for a single node."""
    return "none" if endpoint else uuid.uuid4().hex


def _parse_conf(text: str) -> dict[str, str]:
    """Raises ValueError."""
    pairs = [pair.strip() for pair in text.split(",") if pair.strip()]
    wrong = next((pair for pair in pairs if "=" not in pair), None)
    if wrong is not None:
        raise ValueError(f"--rdzv-conf has {wrong!r}, must be KEY=VALUE,...")
    conf = {key.strip(): value.strip() for key, _, value in (pair.partition("=") for pair in pairs)}
    parse_timing(conf)
    parse_is_host(conf)
    return conf


def _build_command(args: Mapping[str, object], environ: Mapping[str, str]) -> tuple[str, ...]:
    script, arguments = str(args["script"]), args["arguments"]
    assert isinstance(arguments, list)
    if args["no_python"] and not args["run_path"]:
        if args["module"] or args["pass_local_rank"]:
            raise ValueError("--no-python cannot be used with --module or --pass-local-rank")
        return (script, *arguments)
    if args["pass_local_rank"]:
        arguments = [f"--local-rank={LOCAL_RANK}", *arguments]
    python = environ.get("PYTHON_EXEC", sys.executable)  # torchrun's variable
    return (python, "-u", *(["-m"] if args["module"] else []), script, *arguments)


def _integer(name: str, text: str, least: int | None = None) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"--{name} is {text[:100]!r}, must be a whole number") from None
    if least is not None and number < least:
        raise ValueError(f"--{name} is {number}, must be {least} or more")
    return number


def _port(name: str, text: str | None) -> int:
    port = _integer(name, text) if text else _MASTER_PORT
    if not 0 <= port <= 65535:
        raise ValueError(f"--{name} is {port}, must be from 0 to 65535")
    return port


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds <= LONGEST_S:
        raise ValueError(f"--{name} is {text!r}, must be a number of seconds")
    return max(0.0, seconds)


def _streams(name: str, text: str) -> str:
    if _STREAMS.fullmatch(text) is None:
        raise ValueError(f"--{name} is {text!r}, must be 0, 1, 2 or 3, or RANK:STREAMS,...")
    return text


def _ranks(name: str, text: str) -> str:
    if not all(rank.strip().isdecimal() for rank in text.split(",") if rank.strip()):
        raise ValueError(f"--{name} is {text!r}, must be local ranks: 0,1,...")
    return text


def _signals(name: str, text: str) -> tuple[str, ...]:
    names = tuple(each.strip() for each in text.split(",") if each.strip())
    wrong = next((each for each in names if each not in signal.Signals.__members__ or each in _UNSTOPPABLE), None)
    if wrong is not None:
        raise ValueError(f"--{name} has {wrong!r}, which is not a signal that can be handled")
    return names
