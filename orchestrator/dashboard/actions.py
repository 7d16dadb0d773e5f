"""Requests to jobs from a page. The edge has already refused those that a page of another site sends.

A page with scripts gets a sentence to show. A page without scripts is redirected to the job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Header, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from orchestrator.api.authorization import Caller
from orchestrator.api.deps import Wired
from orchestrator.api.documents import parse_yaml
from orchestrator.commands.job_commands import Commands
from orchestrator.dashboard.answers import FormBody, Posted, first_of
from orchestrator.dashboard.pages import render_page
from orchestrator.domain.access.route_roles import Verdict, find_rule, judge
from orchestrator.domain.counted import counted
from orchestrator.domain.errors import Conflict, FieldProblem, InvalidSpec, NotFound, Refused
from orchestrator.domain.job.job import Job
from orchestrator.domain.specs.validation import parse_model
from orchestrator.wire.job_requests import ChaosRequest, RetryRequest, StacksRequest

MAX_CANCELLED = 200  # jobs of one request

FormAction = Callable[[Commands, str, FormBody], Job]
Scripted = Annotated[str | None, Header(alias="HX-Request")]

_SENTENCES = {
    "cancel": "is being cancelled. Its snapshots are kept.",
    "suspend": "is being suspended: it takes a snapshot, stops, and waits until you resume it.",
    "resume": "is back in the queue and continues from its newest snapshot.",
    "snapshot": "takes a snapshot at its next step.",
    "retry": "gets a new attempt.",
    "scale": "continues on the new number of nodes.",
    "stacks": "saves its stacks. Select a rank to read them.",
    "chaos": "gets one fault. Its page shows how it recovers.",
}
_ACTIONS: dict[str, FormAction] = {
    "cancel": lambda commands, job_id, _: commands.cancel(job_id),
    "suspend": lambda commands, job_id, _: commands.suspend(job_id),
    "resume": lambda commands, job_id, _: commands.resume(job_id),
    "snapshot": lambda commands, job_id, _: commands.snapshot(job_id),
    "retry": lambda commands, job_id, form: commands.retry(job_id, parse_retry(form)),
    "scale": lambda commands, job_id, form: commands.scale(job_id, first_of(form, "nodes")),
    "stacks": lambda commands, job_id, form: commands.stacks(job_id, parse_stacks(form)),
    "chaos": lambda commands, job_id, form: commands.chaos(job_id, parse_chaos(form)),
}
_CANCEL = find_rule("POST", "/jobs/{job_id}/cancel")


def add_actions(router: APIRouter) -> None:
    for verb, action in _ACTIONS.items():
        router.add_api_route(f"/jobs/{{job_id}}/{verb}", _answer_action(verb, action), methods=["POST"])
    router.add_api_route("/cancel", _cancel_chosen, methods=["POST"])


def parse_retry(form: FormBody) -> RetryRequest:
    """`restore_from` is the name of a snapshot, `patch` a merge patch of the spec in YAML. Both may be empty.

    Raises InvalidSpec, HttpProblem.
    """
    text = first_of(form, "patch")
    patch = parse_yaml(text) if text else None
    if patch is not None and not isinstance(patch, dict):
        raise InvalidSpec(
            [FieldProblem("/patch", "must be a mapping, such as 'run: {trainer: {learning_rate: 0.0001}}'")]
        )
    document = {"restore_from": first_of(form, "restore_from") or None, "patch": patch}
    return parse_model(RetryRequest, document)


def parse_stacks(form: FormBody) -> StacksRequest:
    """Raises InvalidSpec."""
    return parse_model(StacksRequest, {"rank": _read_number(first_of(form, "rank"))})


def parse_chaos(form: FormBody) -> ChaosRequest:
    """Parse a chaos request. A node is given by its number in the job, or by its name. Raises InvalidSpec."""
    document = {
        "fault": first_of(form, "fault"),
        "rank": _read_number(first_of(form, "rank")),
        "node": _read_number(first_of(form, "node")),
    }
    return parse_model(ChaosRequest, document)


def _read_number(text: str) -> int | str | None:
    """Return a number, or the text itself, which the model then refuses by name."""
    if not text:
        return None
    return int(text) if text.isascii() and text.isdecimal() else text


def _answer_action(verb: str, action: FormAction) -> Callable[..., Response]:
    def post(job_id: str, wired: Wired, form: Posted, caller: Caller, scripted: Scripted = None) -> Response:
        job = action(wired.commands.acting(caller), job_id, form)
        if scripted is None:
            return RedirectResponse(f"/jobs/{quote(job.id, safe='')}", status_code=303)
        return _answer_notice([f"{job.spec.name} {_SENTENCES[verb]}"])

    return post


def _cancel_chosen(wired: Wired, form: Posted, caller: Caller, scripted: Scripted = None) -> Response:
    chosen = list(dict.fromkeys(form.get("job", [])))
    if not chosen:
        raise Refused("no job is selected; select the jobs to cancel")
    if len(chosen) > MAX_CANCELLED:
        raise Refused(f"{len(chosen)} jobs are selected; at most {MAX_CANCELLED} can be cancelled at once")
    found, mine = wired.identity.places.find_all(chosen), wired.commands.acting(caller)
    verdicts = {job_id: judge(_CANCEL, caller, job=found.get(job_id)) for job_id in chosen}
    outcomes = [_cancel(mine, job_id, verdict) for job_id, verdict in verdicts.items()]
    refused = [sentence for sentence in outcomes if sentence is not None]
    if scripted is None:
        return RedirectResponse("/", status_code=303)
    count = len(chosen) - len(refused)
    return _answer_notice([f"{counted(count, 'job')} {'is' if count == 1 else 'are'} being cancelled.", *refused])


def _cancel(commands: Commands, job_id: str, verdict: Verdict) -> str | None:
    """Request the cancellation of a job. Returns why that is refused, or None."""
    if verdict is Verdict.HIDDEN:
        return f"there is no job {job_id}"
    if verdict is not Verdict.ALLOWED:
        return f"you may not cancel job {job_id}"
    try:
        commands.cancel(job_id)
    except (Conflict, NotFound) as error:
        return str(error)
    return None


def _answer_notice(sentences: list[str]) -> Response:
    return HTMLResponse(render_page("notice.html", sentences=sentences))
