"""Secrets: sealed in the store, opened for a start, masked in output, resealed with a new key."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from orchestrator.domain.access.identity import LOCAL
from orchestrator.domain.access.route_roles import JobPlace
from orchestrator.domain.errors import ConfigurationError, InvalidSpec, LaunchRefused, NotFound, StoreUnavailable
from orchestrator.domain.job.masking import MASK
from orchestrator.identity.job_places import JobPlaces
from orchestrator.identity.keys import keep_keys, parse_keys, read_keys
from orchestrator.identity.vault import Vault
from tests.identity.fakes import HandClock, MemoryPlaces, MemorySecretStore

OLD, NEW = Fernet.generate_key(), Fernet.generate_key()
VALUE = "wandb-0123456789"


@pytest.fixture
def store() -> MemorySecretStore:
    return MemorySecretStore()


@pytest.fixture
def places() -> MemoryPlaces:
    return MemoryPlaces(
        jobs={"job-1": JobPlace(project="research", owner=None), "job-2": JobPlace(project="vision", owner=None)}
    )


def a_vault(
    store: MemorySecretStore, *keys: bytes, places: MemoryPlaces | None = None, clock: HandClock | None = None
) -> Vault:
    clock = clock or HandClock()
    return Vault(store, JobPlaces(places or MemoryPlaces()), clock, keys or (OLD,), monotonic=clock.monotonic)


def test_a_secret_is_stored_sealed_and_opened_for_a_start(store: MemorySecretStore) -> None:
    vault = a_vault(store)
    assert vault.put("research", "KEY", VALUE, by=LOCAL) is True
    assert vault.put("research", "KEY", VALUE + "-2", by=LOCAL) is False
    (row,) = store.all()
    assert VALUE not in row.sealed
    assert row.sealed not in repr(row)
    assert (row.updated_by, vault.names("research"), vault.names("vision")) == ("local", {"KEY"}, frozenset())
    assert vault.reveal("research", ["KEY"]) == {"KEY": VALUE + "-2"}
    assert vault.reveal("research", []) == {}


def test_a_start_with_missing_secrets_names_them(store: MemorySecretStore) -> None:
    vault = a_vault(store)
    vault.put("research", "KEY", VALUE, by=LOCAL)
    with pytest.raises(LaunchRefused, match="project research has no secret A, B"):
        vault.reveal("research", ["B", "KEY", "A"])
    with pytest.raises(LaunchRefused):
        vault.reveal("vision", ["KEY"])


@pytest.mark.parametrize("value", ["", "1234567", "       1234567      "])
def test_a_secret_too_short_to_mask_is_not_stored(store: MemorySecretStore, value: str) -> None:
    with pytest.raises(InvalidSpec, match="8 characters"):
        a_vault(store).put("research", "KEY", value, by=LOCAL)
    assert not store.rows


def test_a_removed_secret_is_gone(store: MemorySecretStore) -> None:
    vault = a_vault(store)
    vault.put("research", "KEY", VALUE, by=LOCAL)
    vault.remove("research", "KEY", by=LOCAL)
    assert vault.listed(None) == []
    with pytest.raises(NotFound):
        vault.remove("research", "KEY", by=LOCAL)


def test_secrets_are_listed_by_project(store: MemorySecretStore) -> None:
    vault = a_vault(store)
    for project in ("vision", "research"):
        vault.put(project, "KEY", VALUE, by=LOCAL)
    assert [each.project for each in vault.listed(None)] == ["research", "vision"]
    assert [each.project for each in vault.listed({"vision"})] == ["vision"]
    assert vault.listed(set()) == []


def test_a_sealed_row_copied_to_another_project_does_not_open(store: MemorySecretStore) -> None:
    vault = a_vault(store)
    vault.put("research", "KEY", VALUE, by=LOCAL)
    (row,) = store.all()
    store.put(replace(row, project="vision"))
    with pytest.raises(StoreUnavailable, match="its row was changed"):
        vault.reveal("vision", ["KEY"])
    store.put(replace(row, name="OTHER"))
    with pytest.raises(StoreUnavailable, match="its row was changed"):
        vault.reveal("research", ["OTHER"])


def test_a_new_key_opens_and_reseals_secrets_of_the_old_one(store: MemorySecretStore) -> None:
    a_vault(store, OLD).put("research", "KEY", VALUE, by=LOCAL)
    both = a_vault(store, NEW, OLD)
    assert both.reveal("research", ["KEY"]) == {"KEY": VALUE}
    assert (both.reseal(), both.reseal()) == (1, 0)
    assert a_vault(store, NEW).reveal("research", ["KEY"]) == {"KEY": VALUE}
    with pytest.raises(StoreUnavailable, match="none of the service's keys"):
        a_vault(store, OLD).reveal("research", ["KEY"])


def test_masks_fail_if_a_secret_cannot_be_opened(store: MemorySecretStore, places: MemoryPlaces) -> None:
    a_vault(store, OLD).put("research", "KEY", VALUE, by=LOCAL)
    with pytest.raises(StoreUnavailable):
        a_vault(store, NEW, places=places).masks(["job-1"])


def test_a_mask_hides_only_secrets_of_the_jobs_project(store: MemorySecretStore, places: MemoryPlaces) -> None:
    vault = a_vault(store, places=places)
    assert vault.masks(["job-1"]) == {}
    assert places.asked == [], "without secrets the places of jobs are not read"
    vault.put("research", "KEY", VALUE, by=LOCAL)
    masks = vault.masks(["job-1", "job-2", "unknown"])
    assert masks.keys() == {"job-1"}, "otherwise a job could test guesses of another project's secret"
    assert masks["job-1"].hide(VALUE) == MASK
    assert vault.mask_of_project("research").hide(VALUE) == MASK
    vault.masks(["job-1", "job-2"])
    assert places.asked.count("job-1") == 1


def test_a_secret_stored_by_another_service_is_masked_within_seconds(
    store: MemorySecretStore, places: MemoryPlaces
) -> None:
    clock = HandClock()
    here = a_vault(store, places=places, clock=clock)
    assert here.masks(["job-1"]) == {}
    a_vault(store).put("research", "KEY", VALUE, by=LOCAL)
    clock.advance(5)
    assert here.masks(["job-1"])["job-1"].hide(VALUE) == MASK


# Keys


def test_the_first_start_creates_a_key_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    keys = keep_keys(path)
    assert keep_keys(path) == keys
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [child.name for child in tmp_path.iterdir()] == ["secret.key"]


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    keep_keys(path)
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_keys(path)


def test_keys_are_separated_by_commas_or_line_ends() -> None:
    assert parse_keys(f"{NEW.decode()},{OLD.decode()}\n", "x") == (NEW, OLD)
    assert parse_keys(f"{NEW.decode()}\n{OLD.decode()}\n", "x") == (NEW, OLD)


@pytest.mark.parametrize(
    "text", ["", "  \n", "tooshort", f"{OLD.decode()},hunter2hunter2"], ids=["none", "blank", "short", "the second"]
)
def test_an_invalid_key_is_named_by_position_and_never_shown(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_keys(text, "variable X")
    assert "hunter2" not in str(caught.value)
    assert OLD.decode() not in str(caught.value)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="absent"):
        read_keys(tmp_path / "absent")
