"""Memory that processes of one host share.

A page is an anonymous file (memfd): it has no name, is passed over a Unix socket, and is gone with
the last process that maps it, however that process ends. Its size is sealed, so no peer can cut it
off under a reader.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from oneflow.boxing.transport.rendezvous import SLICE_S
from oneflow.core.errors import TransportError
from oneflow.kernels.array import Array

PAGE_NBYTES = mmap.PAGESIZE
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_REPLY = struct.Struct("<B")


class SharedPage:
    """A sealed piece of shared memory, seen as int64 `words` and as uint8 `bytes`.

    words: a memoryview: reading or writing one is a single load or store, and twice as fast as an
    array element.
    """

    __slots__ = ("_anchor", "_map", "address", "bytes", "fd", "nbytes", "words")

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._map = mmap.mmap(fd, nbytes)
        self._anchor: Any = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._anchor)
        self.words: memoryview[int] = memoryview(self._map).cast("q")
        self.bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(self._map, np.uint8)

    @classmethod
    def create(cls, nbytes: int) -> SharedPage:
        """A new page of at least `nbytes` zeros. Raises TransportError if memory is short."""
        nbytes = max(1, -(-nbytes // PAGE_NBYTES)) * PAGE_NBYTES
        fd = os.memfd_create("oneflow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(fd, nbytes)
        except OSError as error:
            os.close(fd)
            raise TransportError(
                f"{nbytes} bytes of shared memory cannot be had: {error}"
            ) from error

    @classmethod
    def from_fd(cls, fd: int) -> SharedPage:
        """Maps a page that a peer passed, and owns `fd`. Raises TransportError if not sealed."""
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        nbytes = os.fstat(fd).st_size
        if seals & _SEALS != _SEALS or nbytes == 0:
            os.close(fd)
            raise TransportError("a peer passed shared memory that is not sealed")
        return cls(fd, nbytes)

    def array(self, dtype: DTypeLike, offset: int, count: int) -> Array:
        """`count` elements of `dtype` from byte `offset` on, in place."""
        kind: np.dtype[Any] = np.dtype(dtype)
        return self.bytes[offset : offset + count * kind.itemsize].view(kind)

    def close(self) -> None:
        """Unmaps, now or when the last array that looks into the page is gone. Idempotent."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        self.words.release()
        self._anchor = None
        self.bytes = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):  # an array still looks into it: it unmaps with that
            self._map.close()


def host_identity() -> str:
    """Equal on two processes that can share pages: same boot, network namespace and user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/net')}/{os.getuid()}"


class PageServer:
    """Hands this process's pages to its peers by name, over an abstract Unix socket.

    Serves only processes of the same user (checked with the kernel, SO_PEERCRED).
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._pages: dict[str, SharedPage] = {}
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name = f"\0oneflow-{secrets.token_hex(16)}"
        self._listener.bind(name)
        self._listener.listen(128)
        self.address = name.encode()
        threading.Thread(target=self._serve, name="oneflow-pages", daemon=True).start()

    def publish(self, name: str, page: SharedPage) -> None:
        """Let peers fetch `page` as `name` from now on."""
        with self._changed:
            self._pages[name] = page
            self._changed.notify_all()

    def withdraw(self, name: str) -> None:
        """Forget `name`; processes that have fetched the page keep it."""
        with self._changed:
            self._pages.pop(name, None)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError, TransportError):
            peer.settimeout(10.0)
            check_same_user(peer)
            name = peer.recv(4096).decode()
            with self._changed:
                self._changed.wait_for(lambda: name in self._pages, timeout=10.0)
                page = self._pages.get(name)
                fds = [page.fd] if page is not None and page.fd >= 0 else []
                socket.send_fds(peer, [_REPLY.pack(len(fds))], fds)


_server: PageServer | None = None
_server_lock = threading.Lock()


def page_server() -> PageServer:
    """This process's server, started at the first call."""
    global _server
    with _server_lock:
        if _server is None or _server.pid != os.getpid():
            _server = PageServer()
        return _server


def fetch_page(
    address: bytes, name: str, timeout_s: float, watch: Callable[[], None] | None = None
) -> SharedPage:
    """Map the page that the process at `address` publishes as `name`; wait for it.

    watch: called again and again meanwhile, ends the wait by raising.
    Raises TransportError if the process is gone, another user's, or has no such page in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            data, fds = _ask_for(address, name, deadline, watch or (lambda: None))
        except OSError as error:
            raise TransportError(f"shared memory {name!r} of a peer: {error}") from error
        if fds:
            os.set_inheritable(fds[0], False)
            return SharedPage.from_fd(fds[0])
        if not data or time.monotonic() >= deadline:
            said = "has no such page" if data else "closed before it passed its page"
            raise TransportError(f"shared memory {name!r}: a peer {said}")


def _ask_for(
    address: bytes, name: str, deadline: float, watch: Callable[[], None]
) -> tuple[bytes, list[int]]:
    """Return a server's answer: no bytes if it closed, no descriptor if it has no such page yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(SLICE_S)
        peer.connect(address)
        check_same_user(peer)
        peer.send(name.encode())
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(peer, _REPLY.size, 1)
                return data, fds
            except TimeoutError:
                watch()
                if time.monotonic() >= deadline:
                    raise


def check_same_user(peer: socket.socket) -> None:
    """Raises TransportError unless the process at the other end runs as the same user."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    if uid != os.getuid():
        raise TransportError(f"process {pid} of user {uid} asked for shared memory: refused")
