"""A certificate that does not fit is told before anything listens."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from orchestrator.domain.errors import ConfigurationError
from orchestrator.process import check_settings
from orchestrator.settings import Settings


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """For localhost, signed by itself."""
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


def test_a_certificate_and_its_key_are_taken(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    check_settings(Settings(root=tmp_path / "root", tls_cert=cert, tls_key=key))


def test_one_without_the_other_is_refused(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    for half in ({"tls_cert": cert}, {"tls_key": key}):
        with pytest.raises(ConfigurationError, match="go together"):
            check_settings(Settings(root=tmp_path / "root", **half))  # type: ignore[arg-type]  # one of two paths


def test_a_key_of_another_certificate_and_a_missing_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (cert, key), (_, other) = make_certificate(tmp_path), make_certificate(tmp_path / "other")
    for wrong_cert, wrong_key in ((cert, other), (tmp_path / "absent", key), (key, key)):
        with pytest.raises(ConfigurationError, match="ORCHESTRATOR_TLS_CERT"):
            check_settings(Settings(root=tmp_path / "root", tls_cert=wrong_cert, tls_key=wrong_key))
