"""The page to submit a job: a form beside its YAML, and the plan of what would start."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Query, Response
from fastapi.responses import JSONResponse, RedirectResponse

from orchestrator.api.authorization import Caller, require_role, require_sight
from orchestrator.api.documents import parse_yaml
from orchestrator.api.errors import HttpProblem
from orchestrator.commands.job_commands import Commands
from orchestrator.commands.plans import Plans
from orchestrator.dashboard.answers import CurrentRequest, FormBody, PageRequest, Posted, answer_page, first_of, page_of
from orchestrator.dashboard.form import FIELDS, FIRST, KINDS, merge_fields, render_yaml, show_fields
from orchestrator.dashboard.job_page import render_spec
from orchestrator.dashboard.pages import render_page
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.domain.errors import BackendUnavailable, Conflict, FieldProblem, Forbidden, InvalidSpec
from orchestrator.domain.specs.spec import ARRAY_LABEL
from orchestrator.domain.specs.sweep import expand, is_sweep, parse_array
from orchestrator.domain.specs.validation import parse_spec
from orchestrator.identity.job_places import JobPlaces
from orchestrator.queries.inventory import Inventory
from orchestrator.queries.job_queries import Queries


@dataclass(frozen=True, slots=True)
class SubmitPage:
    queries: Queries
    inventory: Inventory
    commands: Commands
    plans: Plans
    places: JobPlaces

    def show(
        self: Shared, request: CurrentRequest, source: Annotated[str | None, Query(alias="from", max_length=128)] = None
    ) -> Response:
        """`from` is the id of a job to clone."""
        text = FIRST if source is None else self._spec_of(source, request.caller)
        return self._page(request, text, source=source or "")

    def draft(self: Shared, form: Posted, caller: Caller) -> Response:
        """Return the YAML with the form's changes, or the form with the YAML's, and the plan. Stores nothing."""
        text = form.get("yaml", [""])[0]
        try:
            document = parse_yaml(text) if text.strip() else {}
        except HttpProblem as error:
            return JSONResponse(
                {"yaml": None, "fields": None, "plan": self._troubled([FieldProblem("", error.detail)])}
            )
        if first_of(form, "changed") == "form":
            document = merge_fields(document, _fields_of(form))
            text = render_yaml(document)
        return JSONResponse({"yaml": text, "fields": show_fields(document), "plan": self._plan(document, caller)})

    def submit(self: Shared, request: CurrentRequest, form: Posted) -> Response:
        """Submit the job and redirect to its page, or show this page with the errors of the spec."""
        text = form.get("yaml", [""])[0]
        if not text.strip():
            return self._page(
                request, text, problems=[FieldProblem("", "the YAML is empty; fill in the form or write YAML")]
            )
        try:
            return RedirectResponse(
                self._submit(parse_yaml(text), request.caller, first_of(form, "key") or None), status_code=303
            )
        except InvalidSpec as error:
            return self._page(request, text, problems=error.problems)
        except HttpProblem as error:
            return self._page(request, text, problems=[FieldProblem("", error.detail)])
        except Forbidden as error:
            return self._page(request, text, problems=[FieldProblem("/project", str(error))])
        except Conflict as error:
            return self._page(request, text, problems=[FieldProblem("", str(error))])

    def _submit(self, document: object, caller: Principal, key: str | None) -> str:
        """Submit a job or an array, and return the address of its page."""
        commands = self.commands.acting(caller)
        if is_sweep(document):
            spec = parse_array(document)
            require_role(caller, Role.SUBMITTER, spec.project)
            jobs, _ = commands.submit_array(spec, key)
            return f"/arrays/{quote(jobs[0].spec.labels[ARRAY_LABEL], safe='')}"
        plain = parse_spec(document)
        require_role(caller, Role.SUBMITTER, plain.project)
        return f"/jobs/{quote(commands.submit(plain, key)[0].id, safe='')}"

    def _page(
        self, request: PageRequest, text: str, *, source: str = "", problems: Sequence[FieldProblem] = ()
    ) -> Response:
        try:
            document = parse_yaml(text)
        except HttpProblem:
            document = {}
        return answer_page(
            request,
            "submit.html",
            status=422 if problems else 200,
            text=text,
            source=source,
            fields=show_fields(document),
            kinds=KINDS,
            clusters=self.inventory.names(),
            key=secrets.token_urlsafe(16),
            plan=self._troubled(problems) if problems else self._plan(document, request.caller),
        )

    def _spec_of(self, job_id: str, caller: Principal) -> str:
        """Raises NotFound."""
        require_sight(self.places, caller, job_id)
        job = self.queries.job(job_id)
        return render_spec(job.model_copy(update={"spec": job.spec.outside_array()}))

    def _plan(self, document: object, caller: Principal) -> str:
        """Return the plan as HTML, or the errors of the spec."""
        try:
            members = expand(parse_array(document), "preview") if is_sweep(document) else []
            spec = members[0].model_copy(update={"array": None}) if members else parse_spec(document)
            require_role(caller, Role.SUBMITTER, spec.project)
            plans = self.plans.acting(caller)
            plan, rungs = plans.plan(spec), plans.compare_memory(spec)
        except InvalidSpec as error:
            return self._troubled(error.problems)
        except Forbidden as error:
            return self._troubled([FieldProblem("/project", str(error))])
        except BackendUnavailable as error:
            return self._troubled([FieldProblem("/cluster", str(error))])
        most = max([view.total_bytes for _, view in rungs] + [view.device_bytes or 0 for _, view in rungs], default=0)
        return render_page("plan.html", plan=plan, rungs=rungs, most=most, members=len(members), problems=[])

    def _troubled(self, problems: Sequence[FieldProblem]) -> str:
        return render_page("plan.html", plan=None, rungs=[], most=0, members=0, problems=problems)


Shared = Annotated[SubmitPage, Depends(page_of(SubmitPage))]


def _fields_of(form: FormBody) -> dict[str, str]:
    return {name: first_of(form, name) for name in (*FIELDS, "kind") if name in form}
