"""A TCP proxy that knows frames and, under a seed, is a bad network: late, lossy, twice, in another
order, with wrong bits, cut, silent in one direction or both.

It knows HTTP/2 (gRPC) and the two protocols of ours between ranks: collectives and actors. On TCP a
lost packet comes late and a lost connection ends, so `loss` and `cut` are what networks do; `drop`,
`duplicate`, `reorder` and `corrupt` are worse than that: something between the ends is broken.
"""

from __future__ import annotations

import queue
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

RESEND_S = 0.2  # a packet lost on a short way is sent again after so long
READ_NBYTES = 1 << 16
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HTTP2_KINDS = ("data", "headers", "priority", "reset", "settings", "push", "ping", "goaway", "room")
UP, DOWN = "up", "down"  # towards the target, back to who connected
OPENING = {UP: 68, DOWN: 64}  # bytes of a mesh's handshake: rank, nonce, proof; nonce, proof


@dataclass(frozen=True)
class Faults:
    """Chances in 0..1 for each frame; times in seconds.

    jitter_s: at most so much more than delay_s.  stall: nothing follows for stall_s.  loss: late
    by one resending.  cut: the connection is reset.  truncate: in the middle of the frame.
    intact: so many bytes at a frame's beginning keep their bits.
    kinds: the frames that are meant; none: all but what opens a connection.  first: so many
    frames of a direction pass unharmed.  directions: which are.  nbytes_per_s: 0: no bound.
    limit: so many faults in all, of those that are not about time.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    stall: float = 0.0
    stall_s: float = 0.0
    loss: float = 0.0
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    truncate: float = 0.0
    cut: float = 0.0
    kinds: frozenset[str] = frozenset()
    first: int = 0
    directions: tuple[str, ...] = (UP, DOWN)
    nbytes_per_s: float = 0.0
    limit: int = 1 << 30
    intact: int = 9


@dataclass
class Frame:
    kind: str
    data: bytes


# ---- frames --------------------------------------------------------------------------------------


class Framer:
    """Cuts a stream into frames. lead: bytes that open it, of kind "open", as they come.

    size_of: the bytes of a whole frame and its kind from its first `head` bytes.
    """

    def __init__(self, lead: int, head: int, size_of: Callable[[bytes], tuple[int, str]]) -> None:
        self._lead, self._head, self._size_of = lead, head, size_of
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._data += data
        while self._data:
            if self._lead:
                nbytes, kind = min(self._lead, len(self._data)), "open"
                self._lead -= nbytes
            else:
                if len(self._data) < self._head:
                    return
                nbytes, kind = self._size_of(bytes(self._data[: self._head]))
                if len(self._data) < nbytes:
                    return
            frame = Frame(kind, bytes(self._data[:nbytes]))
            del self._data[:nbytes]
            yield frame

    def rest(self) -> bytes:
        return bytes(self._data)


def _http2(head: bytes) -> tuple[int, str]:
    kind = HTTP2_KINDS[head[3]] if head[3] < len(HTTP2_KINDS) else "other"
    return 9 + int.from_bytes(head[:3], "big"), kind


def _collective(head: bytes) -> tuple[int, str]:
    return 224 + struct.unpack_from("<q", head, 16)[0], "call"


def _actors(head: bytes) -> tuple[int, str]:
    code, nbytes = struct.unpack("<QQ", head)
    return 16 + nbytes, "freed" if code & 1 else "ready"


def framer(protocol: str, direction: str) -> Framer:
    """protocol: http2, collectives, actors, or raw: whatever one read brings is a frame."""
    match protocol:
        case "http2":
            return Framer(len(PREFACE) if direction == UP else 0, 9, _http2)
        case "collectives":
            return Framer(OPENING[direction], 224, _collective)
        case "actors":
            return Framer(OPENING[direction], 16, _actors)
    return Framer(0, 0, lambda head: (1, "raw"))


# ---- the proxy -----------------------------------------------------------------------------------


class Proxy:
    """Listens on loopback at `address` and leads to `target` until closed.

    target: host:port; "": each connection begins with a line "<protocol> <host> <port>\\n".
    """

    def __init__(self, target: str = "", protocol: str = "http2", seed: int = 0) -> None:
        self.target, self.protocol, self.seed = target, protocol, seed
        self.counts: Counter[str] = Counter()
        self.faults = Faults()
        self._open = {UP: threading.Event(), DOWN: threading.Event()}
        for event in self._open.values():
            event.set()
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self._number = 0
        self._is_closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True, name="proxy").start()

    @contextmanager
    def doing(self, faults: Faults) -> Iterator[None]:
        self.faults = faults
        try:
            yield
        finally:
            self.faults = Faults()

    @contextmanager
    def silent(self, *directions: str) -> Iterator[None]:
        """Nothing passes in these directions, and nobody is told: as behind a cut cable."""
        chosen = directions or (UP, DOWN)
        self.block(*chosen)
        try:
            yield
        finally:
            self.unblock(*chosen)

    def block(self, *directions: str) -> None:
        for direction in directions:
            self._open[direction].clear()

    def unblock(self, *directions: str) -> None:
        for direction in directions:
            self._open[direction].set()

    def cut(self) -> int:
        """Resets all connections; how many there were."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.reset()
        return len(links)

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.unblock(UP, DOWN)
        self.cut()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_open(self, direction: str) -> None:
        self._open[direction].wait()

    def take(self, what: str) -> bool:
        """Whether one more fault may be done; counts it."""
        with self._lock:
            done = sum(n for k, n in self.counts.items() if k not in ("frame", "late"))
            if done >= self.faults.limit:
                return False
            self.counts[what] += 1
            return True

    def forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._number += 1
            threading.Thread(
                target=self._connect, args=(near, self._number), daemon=True, name="proxy"
            ).start()

    def _connect(self, near: socket.socket, number: int) -> None:
        protocol, target = self.protocol, self.target
        try:
            if not target:
                protocol, host, port = _line(near).split()
            else:
                host, _, port = target.rpartition(":")
            self.wait_open(UP)
            far = socket.create_connection((host.strip("[]"), int(port)), 10.0)
        except (OSError, ValueError):
            _reset(near)
            return
        for sock in (near, far):
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(self, near, far)
        with self._lock:
            self._links.add(link)
        for direction, source, sink in ((UP, near, far), (DOWN, far, near)):
            rng = random.Random(f"{self.seed}/{number}/{direction}")
            way = _Way(self, link, direction, source, sink, framer(protocol, direction), rng)
            way.start(is_raw=protocol == "raw")


class _Link:
    """Both sockets of one connection."""

    def __init__(self, proxy: Proxy, near: socket.socket, far: socket.socket) -> None:
        self._proxy, self._sockets = proxy, (near, far)

    def reset(self) -> None:
        self._proxy.forget(self)
        for sock in self._sockets:
            _reset(sock)


class _Way:
    """One direction of one connection: a thread that reads and one that writes when it is due."""

    def __init__(
        self,
        proxy: Proxy,
        link: _Link,
        direction: str,
        source: socket.socket,
        sink: socket.socket,
        frames: Framer,
        rng: random.Random,
    ) -> None:
        self._proxy, self._link, self._direction = proxy, link, direction
        self._source, self._sink, self._frames, self._rng = source, sink, frames, rng
        self._due: queue.Queue[tuple[float, bytes] | None] = queue.Queue(4096)
        self._free_at = 0.0  # when the line has sent all before
        self._held: bytes | None = None  # the next frame goes before it
        self._seen = 0

    def start(self, is_raw: bool) -> None:
        for work in (lambda: self._read(is_raw), self._write):
            threading.Thread(target=work, daemon=True, name="proxy").start()

    def _read(self, is_raw: bool) -> None:
        with suppress(OSError):
            while data := self._source.recv(READ_NBYTES):
                frames = [Frame("raw", data)] if is_raw else list(self._frames.feed(data))
                for frame in frames:
                    if not self._treat(frame):
                        return
        if self._held is not None:
            self._put(self._held, 0.0)
        self._put(self._frames.rest(), 0.0)
        self._due.put(None)

    def _treat(self, frame: Frame) -> bool:
        """False if the connection is no more."""
        proxy, faults, roll = self._proxy, self._proxy.faults, self._rng.random
        proxy.counts["frame"] += 1
        self._seen += 1
        late_s = faults.delay_s + (faults.jitter_s * roll() if faults.jitter_s else 0.0)
        if not self._is_meant(faults, frame):
            self._put(frame.data, late_s)
            return True
        if roll() < faults.stall and proxy.take("stall"):
            late_s += faults.stall_s
        if roll() < faults.loss and proxy.take("loss"):
            late_s += RESEND_S
        if roll() < faults.cut and proxy.take("cut"):
            self._link.reset()
            return False
        if roll() < faults.truncate and proxy.take("truncate"):
            self._put(frame.data[: self._rng.randrange(len(frame.data))], 0.0)
            time.sleep(0.05)
            self._link.reset()
            return False
        if roll() < faults.drop and proxy.take("drop"):
            return True
        if roll() < faults.corrupt and proxy.take("corrupt"):
            frame = replace(frame, data=self._flipped(frame.data))
        self._pass(frame, faults, late_s)
        return True

    def _pass(self, frame: Frame, faults: Faults, late_s: float) -> None:
        roll = self._rng.random
        if self._held is None and roll() < faults.reorder and self._proxy.take("reorder"):
            self._held = frame.data
            return
        self._put(frame.data, late_s)
        if roll() < faults.duplicate and self._proxy.take("duplicate"):
            self._put(frame.data, 0.0)
        if self._held is not None:
            held, self._held = self._held, None
            self._put(held, 0.0)

    def _is_meant(self, faults: Faults, frame: Frame) -> bool:
        if self._direction not in faults.directions or self._seen <= faults.first:
            return False
        return frame.kind in faults.kinds if faults.kinds else frame.kind != "open"

    def _flipped(self, data: bytes) -> bytes:
        """One bit of what the frame carries, or of its head if it carries nothing."""
        intact = self._proxy.faults.intact
        start = intact if len(data) > intact else 0
        at = self._rng.randrange(start, len(data))
        return data[:at] + bytes([data[at] ^ 1 << self._rng.randrange(8)]) + data[at + 1 :]

    def _put(self, data: bytes, late_s: float) -> None:
        """Delays in order: what comes after something late is late as well."""
        if not data:
            return
        rate = self._proxy.faults.nbytes_per_s
        due = max(time.monotonic() + late_s, self._free_at)
        self._free_at = due + (len(data) / rate if rate else 0.0)
        self._due.put((due, data))

    def _write(self) -> None:
        try:
            while (item := self._due.get()) is not None:
                due, data = item
                if (early_s := due - time.monotonic()) > 0:
                    self._proxy.counts["late"] += 1
                    time.sleep(early_s)
                self._proxy.wait_open(self._direction)
                self._sink.sendall(data)
            self._proxy.wait_open(self._direction)
            self._sink.shutdown(socket.SHUT_WR)
        except OSError:
            self._link.reset()


def _line(sock: socket.socket) -> str:
    data = b""
    while not data.endswith(b"\n"):
        got = sock.recv(1)
        if not got or len(data) > 200:
            raise ValueError("no line")
        data += got
    return data.decode()


def _reset(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
