"""A TLS connection as a plain socket: a thread relays between the two.

The transports write from the memory of registers and read into it with calls that TLS has not, and
look at many sockets at once; with a relay they need not know. It costs two copies, where the
cipher costs more than both.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from contextlib import suppress

from oneflow.core.job_tls import JobTls

PIECE_NBYTES = 256 << 10
LAST_S = 5.0
"""Time for bytes sent before the plain end was closed to reach the other side."""

_relays: set[Relay] = set()


def relayed(tls: JobTls | None, line: socket.socket, is_server: bool) -> socket.socket:
    """The plain end of a TCP connection: itself without TLS. Raises TransportError."""
    if tls is None:
        return line
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    secured = tls.secured(line, is_server)
    near, far = socket.socketpair()
    for end in (near, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE_NBYTES)
    Relay(far, secured).start()
    return near


def finish() -> None:
    """Wait, before a process ends, until all bytes sent on closed plain ends are on their way."""
    deadline = time.monotonic() + LAST_S
    for relay in list(_relays):
        if relay.is_closing:
            relay.join(max(0.0, deadline - time.monotonic()))


class Relay(threading.Thread):
    """Both directions of one connection; ends when both sides have closed, or one is lost.

    The plain end behaves as that of a TCP connection: the end of the other side's bytes is no end
    of the connection, so nobody takes a peer that has done its part for one that is lost. One thing
    is not as there: a plain end that says it sends no more (SHUT_WR) counts as closed, and an
    answer of the other side is then lost. A process that waits for an answer keeps its end open.
    """

    def __init__(self, plain: socket.socket, secured: ssl.SSLSocket) -> None:
        super().__init__(name="tls-relay", daemon=True)
        self._plain, self._secured = plain, secured
        self.is_closing = False
        self._out, self._in = memoryview(b""), memoryview(b"")
        self._out_buffer, self._in_buffer = bytearray(PIECE_NBYTES), bytearray(PIECE_NBYTES)
        self._plain_ended = self._secured_ended = self._end_was_told = self._is_lost = False
        self._wants_to_write = False  # TLS has something of its own to say
        plain.setblocking(False)
        secured.setblocking(False)
        _relays.add(self)

    def run(self) -> None:
        try:
            with selectors.DefaultSelector() as self._selector:
                self._selector.register(self._plain, selectors.EVENT_READ)
                self._selector.register(self._secured, selectors.EVENT_READ)
                while not self._is_over():
                    if not self._move():
                        self._wait()
                self._end()
        except (OSError, ValueError):
            pass  # the transport sees a connection that was closed, and says so
        finally:
            self._plain.close()
            self._secured.close()
            _relays.discard(self)

    def _is_over(self) -> bool:
        """Tell whether nobody reads bytes that still come: the plain end is closed, or shut down
        for writing.
        """
        is_cut = self._is_lost and self._secured_ended and not self._in
        return is_cut or (self._plain_ended and not self._out)

    def _end(self) -> None:
        """Our last bytes are not lost to a reset: the other side closes first."""
        if self._secured_ended or self._is_lost:
            return
        with suppress(OSError):
            self._secured.shutdown(socket.SHUT_WR)
            self._secured.settimeout(LAST_S)
            deadline = time.monotonic() + LAST_S
            while self._secured.recv_into(self._in_buffer) and time.monotonic() < deadline:
                pass

    def _move(self) -> bool:
        """Whether anything went on."""
        moved = [self._take(), self._say(), self._hear(), self._hand_on(), self._tell_end()]
        return any(moved)

    def _take(self) -> bool:
        if self._out or self._plain_ended:
            return False
        try:
            count = self._plain.recv_into(self._out_buffer)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            count = 0  # closed with bytes that it had not read
        if not count:
            self._plain_ended = self.is_closing = True
        self._out = memoryview(self._out_buffer)[:count]
        return True

    def _say(self) -> bool:
        if not self._out:
            return False
        try:
            if self._secured_ended:  # its plain end is closed; some OpenSSLs would say nothing
                raise BrokenPipeError
            self._out = self._out[self._secured.send(self._out) :]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:  # the other side has closed: what it said before is still handed on
            self._is_lost = True
            self._out = memoryview(b"")
        return True

    def _hear(self) -> bool:
        if self._in or self._secured_ended:
            return False
        self._wants_to_write = False
        whole = memoryview(self._in_buffer)
        filled = 0
        try:
            while filled < PIECE_NBYTES:  # a record has 16 KiB at most
                count = self._secured.recv_into(whole[filled:])
                filled += count
                if not count:
                    self._secured_ended = True
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            self._wants_to_write = True
        except ssl.SSLEOFError:
            self._secured_ended = True
        except ConnectionResetError:
            self._secured_ended = self._is_lost = True
        self._in = whole[:filled]
        return filled > 0 or self._secured_ended

    def _hand_on(self) -> bool:
        if not self._in:
            return False
        try:
            self._in = self._in[self._plain.send(self._in) :]
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._in = memoryview(b"")  # nobody reads any more
        return True

    def _tell_end(self) -> bool:
        if self._in or not self._secured_ended or self._end_was_told:
            return False
        self._end_was_told = True
        with suppress(OSError):
            self._plain.shutdown(socket.SHUT_WR)
        return True

    def _wait(self) -> None:
        """Until something can go on; a side that was closed and has nothing to take is not looked
        at, or it would never rest.
        """
        plain = selectors.EVENT_WRITE if self._in else 0
        secured = selectors.EVENT_WRITE if self._out or self._wants_to_write else 0
        if not (self._out or self._plain_ended):
            plain |= selectors.EVENT_READ
        if not (self._in or self._secured_ended):
            secured |= selectors.EVENT_READ
        self._watch(self._plain, plain)
        self._watch(self._secured, secured)
        self._selector.select()

    def _watch(self, end: socket.socket, events: int) -> None:
        is_watched = end in self._selector.get_map()
        if events and is_watched:
            self._selector.modify(end, events)
        elif events:
            self._selector.register(end, events)
        elif is_watched:
            self._selector.unregister(end)
