"""The constants on which both ends of the control plane agree besides the messages.

Limits, channel options, errors on the wire.
"""

from __future__ import annotations

import builtins
import ipaddress
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from oneflow.core import errors
from oneflow.core.config import current_config
from oneflow.core.errors import ConfigError, InternalError, OneFlowError

LATE_S = 10.0  # who waits so long to join says for whom, well before the deadline
PROTOCOL = 5  # raise it when an old peer could misread a message
ERROR_KEY = "oneflow-error"  # trailing metadata: the name of the error's type
AGAIN_KEY = "oneflow-again"  # trailing metadata of a refusal: come again in so many seconds
OPEN_KEY = "oneflow-open"  # initial metadata of every stream that was let in, sent at once
CHUNK_NBYTES = 1 << 20
WINDOW_NBYTES = 2 << 20  # of a stream: so much may be on its way
MAX_VALUE_NBYTES = 1 << 20  # of one key of the store
MAX_KEY_CHARS = 1024
MAX_TEXT_CHARS = 64 << 10
MAX_PLACE_CHARS = 256
MAX_SOCKET_NBYTES = 107  # of a Unix socket's path: the kernel's
MAX_GRAPH_NBYTES = 64 << 20
MAX_PLAN_NBYTES = 64 << 20
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,62}=[A-Za-z0-9_./-]{0,63}")


def channel_options() -> list[tuple[str, int]]:
    """Options of channel and server alike; every limit is explicit.

    so_reuseport=0: or a second scheduler could bind the same port and steal connections.
    ping_timeout: its default of 60 s would hide a dead link.
    keepalive_time, bdp_probe: frozen peers are found by the heartbeat messages, and a peer frozen
    for less than their limit must keep its connection: hence keepalive above that limit, and no
    bandwidth probes, whose pings would end the connection first.
    lookahead_bytes: without probes the window of a stream would stay at 64 KiB, and each piece of a
    log would wait for many round trips.
    enable_http_proxy=0: ranks talk directly, even if the environment names a proxy.
    """
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", current_config().message_nbytes),
        ("grpc.max_send_message_length", current_config().message_nbytes),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.max_concurrent_streams", 1024),  # of a connection; a server's memory is bounded so
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 2_000),
        ("grpc.http2.ping_timeout_ms", 2_000),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_NBYTES),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
    ]


def chunks(data: bytes, nbytes: int = CHUNK_NBYTES) -> Iterator[bytes]:
    """`data` in pieces of at most `nbytes`."""
    for start in range(0, len(data), nbytes):
        yield data[start : start + nbytes]


def encode_error(error: BaseException) -> tuple[str, str]:
    """(type name, text) of an error, cut to a bounded size."""
    text = str(error.args[0]) if len(error.args) == 1 else str(error)
    return type(error).__name__, text[:MAX_TEXT_CHARS]


def decode_error(type_name: str, text: str) -> Exception:
    """The error of that name with that text.

    one of ours, a plain built-in, or else an InternalError.
    """
    ours = getattr(errors, type_name, None)
    if isinstance(ours, type) and issubclass(ours, OneFlowError):
        error = ours.__new__(
            ours, text
        )  # not __init__: InternalError would add its advice a second time
        error.args = (text,)
        return error
    plain = getattr(builtins, type_name, None)
    if isinstance(plain, type) and issubclass(plain, Exception):
        try:
            return plain(text)
        except TypeError:  # UnicodeDecodeError and the like want more than a text
            pass
    return InternalError(f"{type_name}: {text}")


def is_label(text: str) -> bool:
    """Whether a node may have this label: name=value."""
    return _LABEL.fullmatch(text) is not None


def socket_path(address: str) -> Path | None:
    """Return the path of `unix:<path>`; None for host:port. Raises ConfigError for a path that
    cannot be one.
    """
    kind, _, path = address.partition(":")
    if kind != "unix":
        return None
    if not path.startswith("/") or len(os.fsencode(path)) > MAX_SOCKET_NBYTES or "\0" in path:
        raise ConfigError(
            f"address {address!r}: a Unix socket is unix:<absolute path of at most "
            f"{MAX_SOCKET_NBYTES} bytes>"
        )
    return Path(path)


def resolve(host: str, named_by: str = "host") -> str:
    """The IPv4 address of `host` if it has one, else its IPv6 address.

    named_by: the setting it is from.  Raises ConfigError if it has none.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a label that is too long for a name
        raise ConfigError(f"{named_by} {host!r} cannot be resolved: {error}") from None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def is_loopback(host: str) -> bool:
    """Whether `host` (a resolved address) can be reached from this machine only."""
    return ipaddress.ip_address(host).is_loopback


def check_plain(address: str, resolved: str, remedy: str) -> None:
    """Raises ConfigError if a token would be sent in the clear over a network that others see.

    resolved: the host's address.  remedy: how to name certificates.
    """
    if not is_loopback(resolved):
        raise ConfigError(
            f"{address} is another machine, and without TLS anybody on the way could read the "
            f"token: name the folder of certificates with {remedy}"
        )
