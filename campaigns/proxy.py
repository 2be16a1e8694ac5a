"""A TCP proxy that, under a seed, is a bad network: late, lossy, slow, cut, silent in one direction
or both; and with wrong bits, which TCP's sum of 16 bits lets through and TLS must not.

On TCP a lost packet comes late and a lost connection ends. That bytes are missing, come twice or in
another order is none of the things that networks do to a connection: the kernel puts them right.
"""

from __future__ import annotations

import queue
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

RESEND_S = 0.2  # a packet lost on a short way is sent again after so long
READ_NBYTES = 1 << 16
UP, DOWN = "up", "down"  # towards the target, back to who connected


@dataclass(frozen=True)
class Faults:
    """Chances in 0..1 for each read of a connection; times in seconds.

    jitter_s: at most so much more than delay_s.  stall: nothing follows for stall_s.  loss: late
    by one resending.  corrupt: a bit is wrong.  cut: the connection is reset.  truncate: it is
    reset in the middle of the bytes read.  first: so many reads of a direction pass unharmed.
    nbytes_per_s: 0: no bound.  limit: so many faults in all, of those that are not about time.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    stall: float = 0.0
    stall_s: float = 0.0
    loss: float = 0.0
    corrupt: float = 0.0
    truncate: float = 0.0
    cut: float = 0.0
    first: int = 0
    nbytes_per_s: float = 0.0
    limit: int = 1 << 30


class Proxy:
    """Listens on loopback at `address` and leads to `target` until closed.

    target: host:port; "": each connection begins with a line "<host> <port>\\n".
    """

    def __init__(self, target: str = "", seed: int = 0) -> None:
        self.target, self.seed = target, seed
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
            done = sum(n for k, n in self.counts.items() if k not in ("read", "late"))
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
        try:
            if not self.target:
                host, port = _line(near).split()
            else:
                host, _, port = self.target.rpartition(":")
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
            _Way(self, link, direction, source, sink, rng).start()


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
        rng: random.Random,
    ) -> None:
        self._proxy, self._link, self._direction = proxy, link, direction
        self._source, self._sink, self._rng = source, sink, rng
        self._due: queue.Queue[tuple[float, bytes] | None] = queue.Queue(4096)
        self._free_at = 0.0  # when the line has sent all before
        self._seen = 0

    def start(self) -> None:
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True, name="proxy").start()

    def _read(self) -> None:
        with suppress(OSError):
            while data := self._source.recv(READ_NBYTES):
                if not self._treat(data):
                    return
        self._due.put(None)

    def _treat(self, data: bytes) -> bool:
        """False if the connection is no more."""
        proxy, faults, roll = self._proxy, self._proxy.faults, self._rng.random
        proxy.counts["read"] += 1
        self._seen += 1
        late_s = faults.delay_s + (faults.jitter_s * roll() if faults.jitter_s else 0.0)
        if self._seen <= faults.first:
            self._put(data, late_s)
            return True
        if roll() < faults.stall and proxy.take("stall"):
            late_s += faults.stall_s
        if roll() < faults.loss and proxy.take("loss"):
            late_s += RESEND_S
        if roll() < faults.cut and proxy.take("cut"):
            self._link.reset()
            return False
        if roll() < faults.truncate and proxy.take("truncate"):
            self._put(data[: self._rng.randrange(len(data))], 0.0)
            time.sleep(0.05)
            self._link.reset()
            return False
        if roll() < faults.corrupt and proxy.take("corrupt"):
            data = self._flipped(data)
        self._put(data, late_s)
        return True

    def _flipped(self, data: bytes) -> bytes:
        at = self._rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self._rng.randrange(8)]) + data[at + 1 :]

    def _put(self, data: bytes, late_s: float) -> None:
        """Delays in order: bytes behind late ones are late as well."""
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
