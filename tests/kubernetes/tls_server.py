"""A TLS server like an API server, which identifies callers by their certificates."""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Signed:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def pems(self) -> tuple[bytes, bytes]:
        kind, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self.certificate.public_bytes(_PEM), self.key.private_bytes(_PEM, kind, none)


def sign(name: str, by: Signed | None = None) -> Signed:
    """Sign a certificate without key identifiers, as in many clusters."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
    )
    return Signed(builder.sign(key if by is None else by.key, hashes.SHA256()), key)


@dataclass(frozen=True)
class Cluster:
    """`callers`: the names in the callers' certificates; "" for a caller without one."""

    authority: Signed
    port: int
    callers: list[str]


@contextmanager
def serve(folder: Path) -> Iterator[Cluster]:
    """Serve until the context ends. Callers without a certificate, or with that of `expired`, get 401."""
    authority, callers = sign("kubernetes"), []
    (folder / "ca.pem").write_bytes(authority.pems()[0])
    (folder / "server.pem").write_bytes(b"".join(sign("kube-apiserver", authority).pems()))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            shown: Any = self.connection.getpeercert()  # type: ignore[attr-defined]  # an ssl socket
            callers.append(shown["subject"][0][0][1] if shown else "")
            body = json.dumps({"gitVersion": "v1.36.2"}).encode()
            self.send_response(401 if callers[-1] in ("", "expired") else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the default since Python 3.13; API servers are less strict
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(folder / "server.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield Cluster(authority, server.server_address[1], callers)
    server.shutdown()
    server.server_close()
    thread.join(5)


def write_kubeconfig(folder: Path, cluster: Cluster, user: dict[str, Any], **of_cluster: Any) -> Path:
    fields = {
        "server": f"https://127.0.0.1:{cluster.port}",
        "certificate-authority-data": b64encode(cluster.authority.pems()[0]).decode(),
        **of_cluster,
    }
    document = {
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": fields}],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    return path
