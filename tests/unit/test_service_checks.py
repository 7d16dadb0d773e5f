"""`doctor` on the service itself: each line has a verdict, and a line that is not OK says what to do."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr

from orchestrator.cluster_settings import KubernetesClusterSettings, SlurmClusterSettings
from orchestrator.doctor.finding import Verdict
from orchestrator.doctor.service_checks import examine_service, judge_space
from orchestrator.domain.access.identity import LOCAL, Role
from orchestrator.identity.tokens import Tokens
from orchestrator.settings import Settings
from orchestrator.store.engine import Database
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.token_store import TokenStore
from orchestrator.store.upgrade import upgrade

TOKEN = SecretStr("a token of sixteen characters")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("checks") / "orchestrator.db"
    upgrade(f"sqlite:///{file}")
    file.chmod(0o600)
    return file


def examine(root: Path, *, reached: str | None = None, **given: Any) -> dict[str, tuple[Verdict, str]]:
    settings = Settings(root=root, **given)
    found = {each.check: (each.verdict, each.sentence) for each in examine_service(settings, reached=lambda _: reached)}
    assert all(":" in sentence for verdict, sentence in found.values() if verdict is not Verdict.OK), found
    return found


def test_a_fresh_laptop_is_fine(tmp_path: Path) -> None:
    found = examine(tmp_path)
    assert {check for check, (verdict, _) in found.items() if verdict is Verdict.FAILED} <= {"disk"}
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_a_database_of_this_version_with_a_held_lease_is_fine(tmp_path: Path, tables: Path) -> None:
    url = f"sqlite:///{tables}"
    database = Database(url)
    lease = SqlLeaseStore(database).acquire("local", "here:1", ttl_s=3600)
    found = examine(tmp_path, database_url=url)
    assert found["database"][0] is found["clock"][0] is Verdict.OK
    assert found["lease of local"] == (Verdict.OK, "held by here:1")
    assert lease is not None
    SqlLeaseStore(database).release(lease)
    database.dispose()
    assert found.keys() == examine(tmp_path, database_url=url).keys()
    assert examine(tmp_path, database_url=url)["lease of local"][0] is Verdict.WARNING
    slurm = {"lab": SlurmClusterSettings(backend="slurm")}
    assert "no service has supervised" in examine(tmp_path, database_url=url, clusters=slurm)["lease of lab"][1]


def test_a_lease_of_a_cluster_that_is_not_configured_here_is_told(tmp_path: Path, tables: Path) -> None:
    url = f"sqlite:///{tables}"
    database = Database(url)
    lease = SqlLeaseStore(database).acquire("forgotten", "there:1", ttl_s=3600)
    found = examine(tmp_path, database_url=url)["lease of forgotten"]
    assert lease is not None
    SqlLeaseStore(database).release(lease)
    database.dispose()
    assert (found[0], "the same [clusters]" in found[1]) == (Verdict.WARNING, True)


def test_what_is_no_database_fails_with_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(old)) as database:
        database.execute("CREATE TABLE of_another (id)")
    assert "orchestrator db upgrade" in examine(tmp_path, database_url=f"sqlite:///{old}")["database"][1]
    away = examine(tmp_path, database_url="postgresql://nobody@127.0.0.1:1/none?connect_timeout=1")
    assert away["database"][0] is Verdict.FAILED
    assert "lease of local" not in away


def test_a_database_that_others_may_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "orchestrator.db"
    upgrade(f"sqlite:///{file}")
    file.chmod(0o644)
    assert examine(tmp_path)["database file"][0] is Verdict.WARNING
    file.chmod(0o600)
    assert "database file" not in examine(tmp_path)


def test_a_run_directory_that_everybody_may_write_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert examine(tmp_path)["run directory"][0] is Verdict.FAILED
    tmp_path.chmod(0o755)
    assert examine(tmp_path / "not" / "yet")["run directory"][0] is Verdict.OK


@pytest.mark.parametrize(
    ("size_gib", "free_gib", "inodes", "verdict"),
    [
        (100, 50, 50, Verdict.OK),
        (20_000, 800, 50, Verdict.OK),  # 4 %, but much
        (20_000, 400, 50, Verdict.WARNING),  # 2 %: file systems become slow
        (20, 9.9, 50, Verdict.WARNING),
        (2, 0.9, 50, Verdict.FAILED),  # 45 %, but no room for a snapshot
        (100, 50, 9, Verdict.WARNING),
        (100, 50, 2, Verdict.FAILED),
    ],
)
def test_a_disk_is_judged_by_bytes_and_by_inodes(
    size_gib: float, free_gib: float, inodes: int, verdict: Verdict
) -> None:
    size, free = (round(gib * 2**30 / 4096) for gib in (size_gib, free_gib))
    disk = os.statvfs_result((4096, 4096, size, free, free, 100, inodes, inodes, 0, 255))
    assert judge_space(disk, Path("/runs"))[1] is verdict


def test_a_file_system_without_inodes_is_judged_by_its_bytes() -> None:
    blocks = 2**30
    assert judge_space(os.statvfs_result((4096, 4096, blocks, blocks, blocks, 0, 0, 0, 0, 255)), Path("/"))[1] is (
        Verdict.OK
    )
    assert judge_space(os.statvfs_result((1, 1, 0, 0, 0, 0, 0, 0, 0, 255)), Path("/"))[1] is Verdict.OK


def test_a_service_of_another_version_is_to_be_restarted(tmp_path: Path) -> None:
    (tmp_path / "service.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1, "version": "0.0.0-old"}')
    verdict, sentence = examine(tmp_path)["version"]
    assert (verdict, "restart the service" in sentence) == (Verdict.WARNING, True)
    for torn in ("{", "[]", '{"url": 1}'):
        (tmp_path / "service.json").write_text(torn)
        assert examine(tmp_path)["version"][0] is Verdict.OK


def test_an_open_service_beyond_loopback_fails(tmp_path: Path) -> None:
    bare = examine(tmp_path, host="0.0.0.0")
    assert (bare["access"][0], bare["TLS"][0]) == (Verdict.FAILED, Verdict.WARNING)
    assert examine(tmp_path, host="0.0.0.0", token=TOKEN)["access"][0] is Verdict.OK
    assert examine(tmp_path, token=TOKEN)["access"] == (
        Verdict.OK,
        "the service listens on this machine only; every user needs a token",
    )


def test_an_admins_token_in_the_database_is_a_way_in(tmp_path: Path) -> None:
    upgrade(f"sqlite:///{tmp_path / 'orchestrator.db'}")
    database = Database(f"sqlite:///{tmp_path / 'orchestrator.db'}")
    from_now = datetime.now(UTC)
    store_token(database, expires_at=from_now - timedelta(days=1))
    assert examine(tmp_path, host="0.0.0.0")["access"][0] is Verdict.FAILED
    store_token(database, expires_at=None)
    assert examine(tmp_path, host="0.0.0.0")["access"][0] is Verdict.OK
    database.dispose()


def store_token(database: Database, *, expires_at: datetime | None) -> None:
    class Now:
        def now(self) -> datetime:
            return datetime.now(UTC) - timedelta(days=2)

    Tokens(TokenStore(database), Now(), first=None).create("boss", {"*": Role.ADMIN}, by=LOCAL, expires_at=expires_at)


def certificate(folder: Path, *, days: float) -> dict[str, Path]:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "orchestrator")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=400))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_text("a key")
    (folder / "key.pem").chmod(0o600)
    return {"tls_cert": folder / "cert.pem", "tls_key": folder / "key.pem"}


@pytest.mark.parametrize(("days", "verdict"), [(90, Verdict.OK), (13, Verdict.WARNING), (-1, Verdict.FAILED)])
def test_a_certificate_is_renewed_before_it_ends(tmp_path: Path, days: float, verdict: Verdict) -> None:
    assert examine(tmp_path, host="0.0.0.0", token=TOKEN, **certificate(tmp_path, days=days))["TLS"][0] is verdict


def test_what_is_no_certificate_fails(tmp_path: Path) -> None:
    files = certificate(tmp_path, days=90)
    files["tls_cert"].write_text("no certificate")
    assert examine(tmp_path, **files)["TLS"][0] is Verdict.FAILED


def test_a_token_of_slurmrestd_that_others_may_read_fails(tmp_path: Path) -> None:
    token = tmp_path / "slurm-token"
    slurm = {"backend": "slurm", "rest_url": "http://api:6820", "defaults": {"partition": "main"}}
    clusters = {"lab": {**slurm, "rest_token_file": str(token)}, "here": {"backend": "local"}}
    assert "token of lab" not in examine(tmp_path, clusters=clusters), "the cluster's own checks say that it is missing"
    token.write_text("token")
    for mode, verdict in ((0o600, Verdict.OK), (0o640, Verdict.FAILED)):
        token.chmod(mode)
        assert examine(tmp_path, clusters=clusters)["token of lab"][0] is verdict


def test_keys_that_others_may_read_fail(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_text("secret")
    (tmp_path / "secret.key").chmod(0o640)
    files = certificate(tmp_path, days=90)
    files["tls_key"].chmod(0o644)
    found = examine(tmp_path, **files)
    assert (found["keys"][0], found["TLS key"][0]) == (Verdict.FAILED, Verdict.FAILED)
    (tmp_path / "secret.key").chmod(0o600)
    files["tls_key"].unlink()
    found = examine(tmp_path, **files)
    assert (found["keys"][0], found["TLS key"][0]) == (Verdict.OK, Verdict.FAILED)
    assert "ORCHESTRATOR_SECRET_KEYS" in examine(tmp_path, secret_keys=SecretStr("x"))["keys"][1]


def test_keys_that_lie_where_jobs_of_a_cluster_can_read_them_fail(tmp_path: Path) -> None:
    shared = KubernetesClusterSettings(backend="kubernetes", claim="runs", service_root=tmp_path)
    verdict, words = examine(tmp_path, clusters={"gke": shared})["keys"]
    assert verdict is Verdict.FAILED
    assert "the jobs of cluster gke can read " in words
    apart = tmp_path.parent / "keys"
    assert examine(tmp_path, secret_key_file=apart)["keys"][0] is Verdict.FAILED, "the service does not create it"
    apart.touch(mode=0o600)
    assert examine(tmp_path, clusters={"gke": shared}, secret_key_file=apart)["keys"][0] is Verdict.OK


def test_an_address_that_nodes_cannot_reach_is_told(tmp_path: Path) -> None:
    slurm = {"lab": SlurmClusterSettings(backend="slurm")}
    assert examine(tmp_path, clusters=slurm)["reports"][0] is Verdict.OK
    own = "http://127.0.0.1:8700"
    assert examine(tmp_path, clusters=slurm, advertise_url=own)["reports"][0] is Verdict.FAILED
    assert examine(tmp_path, advertise_url=own)["reports"][0] is Verdict.OK
    away = examine(tmp_path, advertise_url="http://10.0.0.9:8700", reached="no route")["reports"]
    assert (away[0], "no route" in away[1]) == (Verdict.WARNING, True)
    nameless = examine(tmp_path, advertise_url="http://no-such-host.invalid:8700")["reports"]
    assert (nameless[0], "does not resolve" in nameless[1]) == (Verdict.FAILED, True)


def test_ports_that_any_program_may_be_given_are_told(tmp_path: Path) -> None:
    assert examine(tmp_path, rendezvous_ports=(60000, 60100))["ports"][0] is Verdict.WARNING
    assert examine(tmp_path, rendezvous_ports=(20000, 20100))["ports"][0] is Verdict.OK


@pytest.mark.parametrize(("mode", "said"), [(0o755, Verdict.WARNING), (0o750, Verdict.OK), (0o700, None)])
def test_doctor_reports_who_can_read_the_run_directory_and_changes_nothing(
    tmp_path: Path, mode: int, said: Verdict | None
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(mode)
    verdict, _ = examine(root).get("readers", (None, ""))
    assert verdict is said
    assert root.stat().st_mode & 0o777 == mode
