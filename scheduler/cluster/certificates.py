"""The authority of a cluster and the certificates of its parts, made with `cryptography`."""

from __future__ import annotations

import datetime
import ipaddress
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from oneflow.core.errors import ConfigError
from oneflow.core.folders import write_private
from oneflow.scheduler.cluster.tls import PARTS

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.types import (
        CertificateIssuerPrivateKeyTypes as AuthorityKey,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise ConfigError(
        "making certificates needs the package `cryptography`: pip install cryptography"
    ) from None

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365


def init_tls(folder: Path, hosts: Sequence[str] = (), days: int = CERTIFICATE_DAYS) -> list[Path]:
    """Makes ca.crt, ca.key and NAME.crt, NAME.key for scheduler, daemon and client in `folder`.

    hosts: names and addresses under which the scheduler is reached, besides those of this machine.
    days: so long the certificates are valid; those of a negative number have ended.
    An authority that is there already is kept, so that a second call renews the certificates.
    Returns the files written. Raises ConfigError for files that cannot be read or written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca_files = (folder / "ca.crt", folder / "ca.key")
    written: list[Path] = []
    if all(path.exists() for path in ca_files):
        certificate, key = _load_authority(*ca_files)
    else:
        certificate, key = _make_authority()
        written += _write_pair(*ca_files, certificate, key)
    for part in PARTS:
        made = _make_certificate(part, hosts, certificate, key, days)
        written += _write_pair(folder / f"{part}.crt", folder / f"{part}.key", *made)
    return written


def _make_authority() -> tuple[x509.Certificate, AuthorityKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"oneflow-ca {secrets.token_hex(4)}")  # errors tell two authorities apart
    builder = _builder(name, name, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.sign(key, hashes.SHA256()), key


def _make_certificate(
    part: str, hosts: Sequence[str], ca: x509.Certificate, ca_key: AuthorityKey, days: int
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(f"oneflow-{part}"), ca.subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    usage = [ExtendedKeyUsageOID.CLIENT_AUTH]
    names: list[x509.GeneralName] = [x509.DNSName(f"oneflow-{part}")]
    if part == "scheduler":
        usage.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names += [_alternative(host) for host in _own_hosts(hosts)]
    builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(ca_key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(end)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _own_hosts(hosts: Sequence[str]) -> list[str]:
    own = ("localhost", "127.0.0.1", "::1", socket.gethostname())
    return list(dict.fromkeys((*own, *hosts)))


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _load_authority(certificate: Path, key: Path) -> tuple[x509.Certificate, AuthorityKey]:
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        authority_key = serialization.load_pem_private_key(key.read_bytes(), None)
        return found, cast(AuthorityKey, authority_key)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot use the authority {certificate}: {error}") from None


def _write_pair(
    certificate_file: Path, key_file: Path, certificate: x509.Certificate, key: AuthorityKey
) -> list[Path]:
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_private(key_file, key.private_bytes(pem, *plain))
    write_private(certificate_file, certificate.public_bytes(pem), 0o644)
    return [certificate_file, key_file]
