"""Settings that the service checks before it listens: the certificate and the run directory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from orchestrator import rundir
from orchestrator.domain.errors import ConfigurationError
from orchestrator.jobfolder.folder import Folder
from orchestrator.process import check_settings
from orchestrator.settings import Settings


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(pem, pkcs8, plain))
    return cert_file, key_file


def test_a_certificate_with_its_key_is_accepted(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    check_settings(Settings(root=tmp_path / "root", tls_cert=cert, tls_key=key))


def test_a_certificate_or_a_key_alone_is_refused(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    for half in ({"tls_cert": cert}, {"tls_key": key}):
        with pytest.raises(ConfigurationError, match="go together"):
            check_settings(Settings(root=tmp_path / "root", **half))  # type: ignore[arg-type]  # one of two paths


def test_a_wrong_key_or_a_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (cert, key), (_, other) = make_certificate(tmp_path), make_certificate(tmp_path / "other")
    for wrong_cert, wrong_key in ((cert, other), (tmp_path / "absent", key), (key, key)):
        with pytest.raises(ConfigurationError, match="ORCHESTRATOR_TLS_CERT"):
            check_settings(Settings(root=tmp_path / "root", tls_cert=wrong_cert, tls_key=wrong_key))


def test_two_services_can_start_at_once_in_one_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = rundir.write_document

    def write_and_lose(folder: Folder, path: Path, document: Mapping[str, object]) -> None:
        """The other service removes the file first."""
        write(folder, path, document)
        folder.remove(path)

    monkeypatch.setattr(rundir, "write_document", write_and_lose)
    assert check_settings(Settings(root=tmp_path)).root == tmp_path.resolve()
