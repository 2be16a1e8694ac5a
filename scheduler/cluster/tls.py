"""TLS between the parts of a cluster: both sides show a certificate of the cluster's own authority.

`init_tls` makes the authority and the certificates; the scheduler reads its own anew whenever the
files change, so that they can be renewed while streams are open.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from oneflow.core.errors import ConfigError
from oneflow.core.log import get_logger
from oneflow.scheduler.cluster.settings import TlsFiles

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.types import (
        CertificateIssuerPrivateKeyTypes as AuthorityKey,
    )

PARTS = ("scheduler", "daemon", "client")
AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365
SERVER_NAME = "oneflow-scheduler"  # in every scheduler's certificate, whatever its address

log = get_logger(__name__)


# ---- using ---------------------------------------------------------------------------------------


class ServerTls:
    """Credentials of the scheduler's port: clients without a certificate are turned away."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._stamp()

    def credentials(self) -> Any:
        """Return the credentials for `add_secure_port`. Raises ConfigError for files that cannot be
        used.
        """
        import grpc

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._renewed, require_client_authentication=True
        )

    def expiry(self) -> float | None:
        """Return the time at which the certificate expires, as `expiry_of` does."""
        return expiry_of(self._files.certificate)

    def _configuration(self) -> Any:
        import grpc

        files = self._files
        check_files(files.ca, files.certificate, files.key)
        pair = (_read(files.key), _read(files.certificate))
        return grpc.ssl_server_certificate_configuration([pair], _read(files.ca))

    def _renewed(self) -> Any:
        """Asked at each new connection: the new files, or None if they are the old ones."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        try:
            configuration = self._configuration()
        except ConfigError as error:
            log.error("the certificates changed, but cannot be used: %s", error)
            return None
        self._seen = stamp
        return configuration

    def _stamp(self) -> tuple[int, ...]:
        files = (self._files.ca, self._files.certificate, self._files.key)
        try:
            return tuple(path.stat().st_mtime_ns for path in files)
        except OSError:
            return ()


def expiry_of(certificate: Path) -> float | None:
    """Return the time at which a certificate expires, in seconds since the epoch; None where
    it cannot be read, or `cryptography` is not installed to tell.
    """
    try:
        found = _validity(certificate)
    except ConfigError:
        return None
    return None if found is None else found[1].timestamp()


def check_files(ca: Path, certificate: Path, key: Path) -> None:
    """Raises ConfigError for files that nobody would accept, with the reason and the date.

    gRPC itself says little: a handshake failed. Dates need the package `cryptography`.
    """
    for path in (ca, certificate, key):
        _read(path)
    try:
        ssl.create_default_context(cafile=ca).load_cert_chain(certificate, key)
    except (ssl.SSLError, ValueError) as error:
        said = getattr(error, "reason", None) or str(error)
        raise ConfigError(
            f"TLS: {certificate} and {key} cannot be used together, or {ca} not at all ({said}); "
            "`oneflow cluster init-tls` makes them anew"
        ) from None
    now = datetime.datetime.now(datetime.timezone.utc)
    for path in (ca, certificate):
        found = _validity(path)
        if found is None:
            continue
        begin, end = found
        if now >= end:
            raise ConfigError(
                f"TLS: {path} expired on {end:%Y-%m-%d %H:%M} UTC; renew it with `oneflow cluster "
                "init-tls`"
            )
        if now < begin:
            raise ConfigError(
                f"TLS: {path} is not valid before {begin:%Y-%m-%d %H:%M} UTC, and it is "
                f"{now:%Y-%m-%d %H:%M} here: is the clock right?"
            )


def _validity(path: Path) -> tuple[datetime.datetime, datetime.datetime] | None:
    """Return the first and the last moment of a certificate; None if it cannot be told here. Raises
    ConfigError.
    """
    try:
        from cryptography import x509
    except ImportError:
        return None
    try:
        found = x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise ConfigError(f"TLS: {path} is no certificate: {error}") from None
    return found.not_valid_before_utc, found.not_valid_after_utc


def why_refused(host: str, port: int, folder: Path, timeout_s: float = 2.0) -> str:
    """Say what is wrong with the certificate that is shown at an address, in words with dates; ""
    if nothing is, or nobody answers there.
    """
    context, lax = ssl.create_default_context(cafile=folder / "ca.crt"), _lax_context()
    try:
        _shown(context, host, port, timeout_s)
    except ssl.SSLCertVerificationError as error:
        said = error.verify_message
        with suppress(OSError, ValueError):
            said += _dates(_shown(lax, host, port, timeout_s))
        return f"its certificate is refused: {said}"
    except (OSError, ValueError):
        return ""
    return ""


def wants_tls(host: str, port: int, timeout_s: float = 0.5) -> bool:
    """Whether who listens there speaks TLS."""
    try:
        return bool(_shown(_lax_context(), host, port, timeout_s))
    except ssl.SSLError as error:  # it asks for a certificate, maybe
        return "ALERT" in (error.reason or "")
    except (OSError, ValueError):
        return False


def _lax_context() -> ssl.SSLContext:
    """Make a context that accepts any certificate, to look at it; nothing is sent over it."""
    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    lax.check_hostname, lax.verify_mode = False, ssl.CERT_NONE
    return lax


def _shown(context: ssl.SSLContext, host: str, port: int, timeout_s: float) -> bytes:
    """The certificate that a server shows, as it is."""
    with (
        socket.create_connection((host, port), timeout_s) as line,
        context.wrap_socket(line, server_hostname=SERVER_NAME) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def _dates(certificate: bytes) -> str:
    try:
        from cryptography import x509
    except ImportError:
        return ""
    found = x509.load_der_x509_certificate(certificate)
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    issuer = found.issuer.rfc4514_string()
    return f" (of {issuer}, valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC)"


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"TLS: cannot read {path}: {error.strerror}; `oneflow cluster init-tls` makes it"
        ) from None
    if b"-----BEGIN" not in data:
        raise ConfigError(f"TLS: {path} is not a PEM file")
    return data


def channel_credentials(folder: Path, part: str) -> Any:
    """Make the credentials of a channel to the scheduler, of `part` daemon or client, from the
    files of `init_tls`.

    Use it with the channel option ("grpc.ssl_target_name_override", SERVER_NAME) where the
    scheduler is reached under a name that its certificate does not have.
    """
    import grpc

    ca, key, certificate = (folder / n for n in ("ca.crt", f"{part}.key", f"{part}.crt"))
    check_files(ca, certificate, key)
    return grpc.ssl_channel_credentials(_read(ca), _read(key), _read(certificate))


# ---- making --------------------------------------------------------------------------------------


def init_tls(folder: Path, hosts: Sequence[str] = (), days: int = CERTIFICATE_DAYS) -> list[Path]:
    """Makes ca.crt, ca.key and NAME.crt, NAME.key for scheduler, daemon and client in `folder`.

    hosts: names and addresses under which the scheduler is reached, besides those of this machine.
    days: so long the certificates are valid; those of a negative number have ended.
    An authority that is there already is kept, so that a second call renews the certificates.
    Returns the files written. Raises ConfigError without the package `cryptography`.
    """
    try:
        import cryptography.x509  # noqa: F401
    except ImportError:
        raise ConfigError(
            "making certificates needs the package `cryptography`: pip install cryptography"
        ) from None
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


def _make_authority() -> tuple[Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"oneflow-ca {secrets.token_hex(4)}")  # errors tell two authorities apart
    builder = _builder(name, name, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.sign(key, hashes.SHA256()), key


def _make_certificate(
    part: str, hosts: Sequence[str], ca: x509.Certificate, ca_key: AuthorityKey, days: int
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

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
    from cryptography import x509

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
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _own_hosts(hosts: Sequence[str]) -> list[str]:
    own = ("localhost", "127.0.0.1", "::1", socket.gethostname())
    return list(dict.fromkeys((*own, *hosts)))


def _alternative(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _load_authority(certificate: Path, key: Path) -> tuple[x509.Certificate, AuthorityKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        authority_key = serialization.load_pem_private_key(key.read_bytes(), None)
        return found, cast("AuthorityKey", authority_key)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot use the authority {certificate}: {error}") from None


def _write_pair(
    certificate_file: Path, key_file: Path, certificate: x509.Certificate, key: AuthorityKey
) -> list[Path]:
    from cryptography.hazmat.primitives import serialization

    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    _write(key_file, key.private_bytes(pem, *plain), 0o600)
    _write(certificate_file, certificate.public_bytes(pem), 0o644)
    return [certificate_file, key_file]


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file with its mode from the start; it replaces an older one at once."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(partial, flags, mode), "wb") as file:
            file.write(data)
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
