"""A certificate authority for a test, with a certificate for each end of a line."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Certificates:
    """In PEM; the client's lie in client.crt and client.key of the folder, the authority's in
    ca.crt.
    """

    authority: bytes
    server: bytes
    server_key: bytes


def make(folder: Path) -> Certificates:
    """Writes what the client needs, returns what the server needs."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def key_pem(key: Any) -> bytes:
        return bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )

    def sign(subject: str, key: Any, issuer: str, issuer_key: Any, is_authority: bool) -> Any:
        def name(text: str) -> Any:
            return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
        return builder.sign(issuer_key, hashes.SHA256())

    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]
    authority = sign("test ca", keys[0], "test ca", keys[0], True)
    server = sign("scheduler", keys[1], "test ca", keys[0], False)
    client = sign("daemon", keys[2], "test ca", keys[0], False)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(authority.public_bytes(pem))
    (folder / "client.crt").write_bytes(client.public_bytes(pem))
    (folder / "client.key").write_bytes(key_pem(keys[2]))
    return Certificates(authority.public_bytes(pem), server.public_bytes(pem), key_pem(keys[1]))
