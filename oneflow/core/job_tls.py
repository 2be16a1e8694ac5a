"""TLS between the ranks of one job: all that know the job's token can show a certificate.

The token makes a key (HKDF, RFC 5869), the key an authority that every rank can build for itself,
and the authority signs a certificate that each rank makes anew. So no file has to reach the hosts,
and a rank of one job cannot speak to those of another. Both ends show certificates; TLS 1.3 keys
are ephemeral, so a token that leaks later does not open recorded connections.
"""

from __future__ import annotations

import datetime
import os
import socket
import ssl
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from oneflow.core.config import Config
from oneflow.core.errors import ConfigError, TransportError

NAME = "oneflow-job"
"""The name in every rank's certificate, whatever its address: ranks know each other by the job."""
MIN_TOKEN_CHARS = 32
STRANGER_S, PEER_S = 5.0, 60.0
"""Time for a handshake: who connects here may be anybody; whom we connect to may come late."""
_INFO = b"oneflow job authority, P-256"
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
_UNTIL = datetime.datetime(2120, 1, 1, tzinfo=datetime.timezone.utc)
"""The end of a certificate's life, never: the job ends before, and clocks of hosts may differ."""


def job_tls(config: Config) -> JobTls | None:
    """Return the settings with which a rank speaks TLS with the others; None if they speak in the
    clear.

    Raises ConfigError without a token that nobody can guess, or without `cryptography`.
    """
    if not config.job_tls:
        return None
    if len(config.job_token or "") < MIN_TOKEN_CHARS:
        raise ConfigError(
            f"ONEFLOW_JOB_TLS needs ONEFLOW_JOB_TOKEN, of at least {MIN_TOKEN_CHARS} random "
            "characters, the same on every node: `openssl rand -hex 32` makes one"
        )
    return _made(str(config.job_token))


@dataclass(frozen=True)
class JobTls:
    """PEM texts: the job's authority, this rank's certificate and its key."""

    authority: bytes
    certificate: bytes
    key: bytes

    def server_credentials(self) -> Any:
        """Return the credentials for `add_secure_port`: a peer that shows no certificate of the job
        is turned away.
        """
        import grpc

        pair = (self.key, self.certificate)
        return grpc.ssl_server_credentials([pair], self.authority, require_client_auth=True)

    def channel_credentials(self) -> Any:
        """Return the credentials of a channel, to be used with `channel_options`."""
        import grpc

        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)

    def channel_options(self) -> list[tuple[str, str]]:
        return [("grpc.ssl_target_name_override", NAME)]

    def secured(self, line: socket.socket, is_server: bool) -> ssl.SSLSocket:
        """A TCP connection after the handshake. Raises TransportError, with it closed."""
        line.settimeout(STRANGER_S if is_server else PEER_S)
        context = self._context(is_server)
        name = None if is_server else NAME
        try:
            return context.wrap_socket(line, server_side=is_server, server_hostname=name)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            line.close()
            said = getattr(error, "reason", None) or str(error)
            raise TransportError(
                f"no TLS with the other end ({said}): has it the same ONEFLOW_JOB_TOKEN and "
                "ONEFLOW_JOB_TLS?"
            ) from error

    def _context(self, is_server: bool) -> ssl.SSLContext:
        protocol = ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.authority.decode())
        handle = os.memfd_create("oneflow-job-tls", os.MFD_CLOEXEC)  # Python reads files only
        try:
            os.write(handle, self.certificate + self.key)
            context.load_cert_chain(f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)
        return context


@lru_cache(maxsize=4)
def _made(token: str) -> JobTls:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError:
        raise ConfigError(
            "ONEFLOW_JOB_TLS: TLS between ranks needs the package `cryptography` on each host: "
            "pip install 'oneflow-actors[cluster]'; ONEFLOW_JOB_TLS=0 lets them speak in the clear"
        ) from None
    secret = HKDF(hashes.SHA256(), 48, salt=None, info=_INFO).derive(token.encode())
    number = int.from_bytes(secret, "big") % (_ORDER - 1) + 1
    authority_key = ec.derive_private_key(number, ec.SECP256R1())
    own_key = ec.generate_private_key(ec.SECP256R1())
    authority = _signed(f"{NAME} authority", authority_key.public_key(), authority_key, None)
    san = x509.SubjectAlternativeName([x509.DNSName(NAME)])
    certificate = _signed(NAME, own_key.public_key(), authority_key, san)
    return JobTls(_pem(authority), _pem(certificate), _key_pem(own_key))


def _signed(subject: str, public_key: Any, authority_key: Any, san: Any) -> Any:
    """san: None: the authority itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    is_authority = san is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(f"{NAME} authority"))
        .public_key(public_key)
        .serial_number(1 if is_authority else x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
    )
    if not is_authority:
        builder = builder.add_extension(san, critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    found: bytes = certificate.public_bytes(Encoding.PEM)
    return found


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    found: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return found
