"""Does a test notice every guard and every rule? Each is taken out in turn, and some test must then fail.

`make mutate` runs this. What is looked at, and which tests are asked, stands in deploy/dev/mutation/targets.py; mutants
that no test can notice stand with their reasons in deploy/dev/mutation/equivalent.txt. The working tree is not touched.
Exit 0 when every mutant was killed or is listed, 1 when one survived or the list is not true, 2 when nothing could be
said: the tests fail as they are, or a table names what is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.dev.mutation.equivalent import LIST, BadList, parse_equivalents
from deploy.dev.mutation.mutants import Mutant, find_mutants
from deploy.dev.mutation.run import Red, Verdict, open_bench
from deploy.dev.mutation.targets import LEFT_OUT, SUITES, StaleTable, Suite, modules_of

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be tried: the mutants with the suite of their module, and the reasons of those that may survive."""

    root: Path
    mutants: Sequence[tuple[Mutant, Suite]]
    equivalent: Mapping[str, str]

    def only(self, part: str) -> Plan:
        """Those whose name or path contains `part`."""
        kept = [(mutant, suite) for mutant, suite in self.mutants if part in mutant.name or part in mutant.path]
        return Plan(root=self.root, mutants=kept, equivalent=self.equivalent)

    def texts(self) -> dict[str, str]:
        """What the modules hold now."""
        return {path: (self.root / path).read_text() for path in {mutant.path for mutant, _ in self.mutants}}


def main() -> int:
    options = _parse_options()
    try:
        plan = build_plan(ROOT, SUITES, LEFT_OUT, parse_equivalents(LIST.read_text())).only(options.only)
    except (StaleTable, BadList) as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(mutant.name for mutant, _ in plan.mutants))
        return 0
    return run(plan, jobs=options.jobs, as_json=options.json)


def build_plan(root: Path, suites: Sequence[Suite], left_out: Sequence[str], equivalent: Mapping[str, str]) -> Plan:
    """Find everything that is to be tried. Raises StaleTable, BadList for an equivalent that is no mutant any more."""
    mutants = [
        (mutant, suite)
        for path, suite in modules_of(root, suites, left_out).items()
        for mutant in find_mutants(path, (root / path).read_text())
    ]
    gone = sorted(equivalent.keys() - {mutant.name for mutant, _ in mutants})
    if gone:
        raise BadList("listed as equivalent, but no mutant any more:\n  " + "\n  ".join(gone))
    return Plan(root=root, mutants=mutants, equivalent=equivalent)


def run(plan: Plan, *, jobs: int, as_json: bool = False) -> int:
    """Try the plan and print what came of it; returns the exit code."""
    started = time.monotonic()
    stages = list(dict.fromkeys(stage for _, suite in plan.mutants for stage in suite.stages))
    # What is known to survive is not asked about at the greatest length.
    trials = [
        (mutant, suite.stages[:-1] if mutant.name in plan.equivalent and len(suite.stages) > 1 else suite.stages)
        for mutant, suite in plan.mutants
    ]
    texts = plan.texts()
    verdicts = []
    with open_bench(plan.root, jobs) as bench:
        try:
            limits = bench.baseline(stages)
        except Red as error:
            print(error, file=sys.stderr)
            return 2
        for verdict in bench.judge(trials, limits):
            verdicts.append(verdict)
            if not as_json:
                print(_line(verdict, plan.equivalent), flush=True)
    if plan.texts() != texts:
        print("a module was changed meanwhile: what was said of its mutants means nothing", file=sys.stderr)
        return 2
    survived = [each for each in verdicts if each.killed_by is None and each.mutant.name not in plan.equivalent]
    untrue = [each for each in verdicts if each.killed_by is not None and each.mutant.name in plan.equivalent]
    seconds = time.monotonic() - started
    if as_json:
        print(json.dumps({"seconds": round(seconds, 1), "mutants": [_document(each, plan) for each in verdicts]}))
    else:
        _print_summary(verdicts, survived, untrue, seconds)
    return 1 if survived or untrue else 0


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.dev.mutate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="SUBSTRING", default="", help="mutants with this in their name or path")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="at a time (default: one per core)")
    parser.add_argument("--list", action="store_true", help="print the mutants' names, try nothing")
    parser.add_argument("--json", action="store_true", help="one document instead of lines")
    return parser.parse_args()


def _line(verdict: Verdict, equivalent: Mapping[str, str]) -> str:
    name = verdict.mutant.name
    if verdict.killed_by is not None:
        untrue = "NOT EQUIVALENT, " if name in equivalent else ""
        return f"{untrue}killed    {name}  <- {verdict.stage}: {verdict.killed_by} ({verdict.seconds:.1f} s)"
    return f"{'equivalent' if name in equivalent else 'SURVIVED '} {name} ({verdict.seconds:.1f} s)"


def _document(verdict: Verdict, plan: Plan) -> dict[str, object]:
    return {
        "name": verdict.mutant.name,
        "path": verdict.mutant.path,
        "line": verdict.mutant.line,
        "killed_by": verdict.killed_by,
        "stage": verdict.stage,
        "seconds": round(verdict.seconds, 2),
        "equivalent": plan.equivalent.get(verdict.mutant.name),
    }


def _print_summary(
    verdicts: Sequence[Verdict], survived: Sequence[Verdict], untrue: Sequence[Verdict], seconds: float
) -> None:
    for heading, some in (("survived", survived), ("listed as equivalent, but killed", untrue)):
        if some:
            print(f"\n{heading}:")
            print("\n".join(f"  {verdict.mutant.name}  (line {verdict.mutant.line})" for verdict in some))
    killed = sum(verdict.killed_by is not None for verdict in verdicts)
    listed = len(verdicts) - killed - len(survived)
    print(
        f"\n{len(verdicts)} mutants in {seconds:.0f} s: {killed} killed, {len(survived)} survived, "
        f"{listed} equivalent with a reason"
    )


if __name__ == "__main__":
    sys.exit(main())
