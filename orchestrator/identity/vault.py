"""Secrets: sealed before they are stored. They are opened to start a job and to mask them in output.

They are sealed together with their project and name, so that a row that was copied to another project or name does not
open.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import structlog

from orchestrator.domain.access.identity import Principal
from orchestrator.domain.errors import FieldProblem, InvalidSpec, LaunchRefused, NotFound, StoreUnavailable
from orchestrator.domain.job.masking import MIN_SECRET_LENGTH, NOTHING, Mask
from orchestrator.identity.job_places import JobPlaces
from orchestrator.identity.short_memory import ShortMemory
from orchestrator.ports.clock import Clock
from orchestrator.store.records import SealedSecret
from orchestrator.store.secret_store import SecretStore

if TYPE_CHECKING:
    from orchestrator.identity.cipher import Cipher

log = structlog.get_logger()

_KEEP_S = 5.0  # how late a secret that another service stored is masked here
_MASKS = "masks"


class Vault:
    """The first of `keys` seals, and each of them opens. Every method raises StoreUnavailable."""

    def __init__(
        self,
        store: SecretStore,
        places: JobPlaces,
        clock: Clock,
        keys: Sequence[bytes],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._places = places
        self._clock = clock
        self._keys = keys
        self._masks: ShortMemory[Mapping[str, Mask]] = ShortMemory(_KEEP_S, monotonic=monotonic)

    def put(self, project: str, name: str, value: str, *, by: Principal) -> bool:
        """Store or replace a secret. Returns whether it is new. Raises InvalidSpec for a value too short to mask."""
        if len(value.strip()) < MIN_SECRET_LENGTH:
            message = f"must have at least {MIN_SECRET_LENGTH} characters: a shorter secret cannot be masked in logs"
            raise InvalidSpec([FieldProblem("/value", message)])
        sealed = SealedSecret(
            project=project,
            name=name,
            sealed=self._encrypt({"project": project, "name": name, "value": value}),
            updated_at=self._clock.now(),
            updated_by=by.name,
        )
        created = self._store.put(sealed)
        self._masks.forget()
        log.info("secret stored", project=project, name=name, by=by.name, created=created)
        return created

    def remove(self, project: str, name: str, *, by: Principal) -> None:
        """Raises NotFound."""
        if not self._store.remove(project, name):
            raise NotFound(f"project {project} has no such secret")
        self._masks.forget()
        log.info("secret removed", project=project, name=name, by=by.name)

    def listed(self, projects: Collection[str] | None) -> Sequence[SealedSecret]:
        """Return the secrets of these projects, by project and name. None means every project."""
        return [each for each in self._store.all() if projects is None or each.project in projects]

    def names(self, project: str) -> frozenset[str]:
        return frozenset(each.name for each in self._store.of_project(project))

    def reveal(self, project: str, names: Collection[str]) -> Mapping[str, str]:
        """Return the values of these secrets, for a start. Raises LaunchRefused for a missing one."""
        if not names:
            return {}
        stored = {each.name: each for each in self._store.of_project(project)}
        missing = sorted(set(names) - stored.keys())
        if missing:
            raise LaunchRefused(f"project {project} has no secret {', '.join(missing)}; store it, then retry the job")
        return {name: self._open(stored[name]) for name in names}

    def mask_of_project(self, project: str) -> Mask:
        """Return the mask of all secrets of a project."""
        return self._all_masks().get(project, NOTHING)

    def masks(self, job_ids: Collection[str]) -> Mapping[str, Mask]:
        """Return the mask of each job's project. Jobs of a project without secrets are left out."""
        masks = self._all_masks()
        if not masks:
            return {}
        places = self._places.find_all(job_ids)
        return {job_id: masks[place.project] for job_id, place in places.items() if place.project in masks}

    def reseal(self) -> int:
        """Seal again the secrets that an older key sealed. Returns how many. Older keys are not needed after that."""
        old = [each for each in self._store.all() if not self._cipher.is_newest(each.sealed)]
        for each in old:
            self.put(each.project, each.name, self._open(each), by=Principal(name=each.updated_by))
        return len(old)

    def seal(self, purpose: str, text: str) -> str:
        """Seal a text that is not a project's secret. `unseal` opens it only for the same `purpose`."""
        return self._encrypt({"purpose": purpose, "text": text})

    def unseal(self, purpose: str, sealed: str) -> str:
        """Raises StoreUnavailable."""
        document = self._decrypt(sealed, purpose)
        if document.get("purpose") != purpose:
            raise StoreUnavailable(f"{purpose} was sealed for another purpose: its row was changed in the database")
        return document["text"]

    @cached_property
    def _cipher(self) -> Cipher:
        # Loading the library takes 7 MB. A service without secrets does not need it.
        from orchestrator.identity.cipher import Cipher  # noqa: PLC0415

        return Cipher(self._keys)

    def _all_masks(self) -> Mapping[str, Mask]:
        remembered = self._masks.recall(_MASKS)
        if remembered is not None:
            return remembered.value
        values: dict[str, list[str]] = {}
        for each in self._store.all():
            values.setdefault(each.project, []).append(self._open(each))
        return self._masks.keep(_MASKS, {project: Mask(of_project) for project, of_project in values.items()})

    def _open(self, secret: SealedSecret) -> str:
        place = f"secret {secret.name} of project {secret.project}"
        document = self._decrypt(secret.sealed, place)
        if (document["project"], document["name"]) != (secret.project, secret.name):
            raise StoreUnavailable(f"{place} was sealed for another name: its row was changed in the database")
        return document["value"]

    def _encrypt(self, document: Mapping[str, str]) -> str:
        return self._cipher.seal(json.dumps(document).encode(errors="surrogatepass"))

    def _decrypt(self, sealed: str, what: str) -> Mapping[str, str]:
        content = self._cipher.open(sealed)
        if content is None:
            raise StoreUnavailable(f"none of the service's keys opens {what}")
        document: Mapping[str, str] = json.loads(content)
        return document
