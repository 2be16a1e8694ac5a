"""TLS between the parts of a cluster: both sides show a certificate of the cluster's own authority.

`init_tls` (certificates.py) makes the authority and the certificates; the scheduler reads its own
anew whenever the files change, so that they can be renewed while streams are open.
"""

from __future__ import annotations

import datetime
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.core.errors import ConfigError
from oneflow.core.log import get_logger
from oneflow.scheduler.cluster.settings import TlsFiles

if TYPE_CHECKING:
    from cryptography import x509

PARTS = ("scheduler", "daemon", "client")
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
        found = _parsed(_read(certificate))
    except (ConfigError, ValueError):
        return None
    return None if found is None else found.not_valid_after_utc.timestamp()


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
        try:
            found = _parsed(_read(path))
        except ValueError as error:
            raise ConfigError(f"TLS: {path} is no certificate: {error}") from None
        if found is None:
            continue
        begin, end = found.not_valid_before_utc, found.not_valid_after_utc
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


def _parsed(pem: bytes) -> x509.Certificate | None:
    """The certificate; None without the package `cryptography`. Raises ValueError."""
    try:
        from cryptography.x509 import load_pem_x509_certificate
    except ImportError:
        return None
    return load_pem_x509_certificate(pem)


def why_refused(host: str, port: int, folder: Path, timeout_s: float = 2.0) -> str:
    """Say why the certificate that is shown at an address is refused, in words with dates; ""
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
    """Tell whether the listener there speaks TLS."""
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
    found = _parsed(ssl.DER_cert_to_PEM_cert(certificate).encode())
    if found is None:
        return ""
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
