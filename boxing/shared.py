"""Memory that processes of one host share, and how one wakes another that sleeps on it.

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
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oneflow.boxing.transport.rendezvous import KeyValueStore
from oneflow.core.errors import TransportError

PAGE_NBYTES = mmap.PAGESIZE
MAX_FDS = 16
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
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

    def array(self, dtype: Any, offset: int, count: int) -> np.ndarray[Any, Any]:
        """`count` elements of `dtype` from byte `offset` on, in place."""
        dtype = np.dtype(dtype)
        return self.bytes[offset : offset + count * dtype.itemsize].view(dtype)

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


def _futex_number() -> int:
    return _SYS_FUTEX.get(os.uname().machine, 202)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_NUMBER = ctypes.c_long(_futex_number())
_WAIT, _WAKE, _ALL = ctypes.c_int(_FUTEX_WAIT), ctypes.c_int(_FUTEX_WAKE), ctypes.c_int(2**31 - 1)
_LOW = 0 if sys.byteorder == "little" else 4
_fence_lock = threading.Lock()
QUIET_SPIN_S = 8e-6  # then others may have the core between two looks: the peer may wait for it


def futex_wait(page: SharedPage, index: int, expected: int, timeout_s: float) -> None:
    """Sleeps while the low half of word `index` is `expected`; until a wake, signal or `timeout_s`.

    The kernel compares and sleeps in one step, so a wake after a change is never missed. Look at
    the word again after the return: it does not say why it came back. Lets other Python threads run
    meanwhile.
    """
    seconds = int(timeout_s)
    limit = _Timespec(seconds, int((timeout_s - seconds) * 1e9))
    address = ctypes.c_void_p(page.address + 8 * index + _LOW)
    value = ctypes.c_uint32(expected & 0xFFFFFFFF)
    _syscall(_NUMBER, address, _WAIT, value, ctypes.byref(limit), None, 0)


def futex_wake(page: SharedPage, index: int) -> None:
    """Wakes all that sleep on word `index`."""
    _syscall(_NUMBER, ctypes.c_void_p(page.address + 8 * index + _LOW), _WAKE, _ALL, None, None, 0)


def full_fence() -> None:
    """No later load is done before earlier stores are visible to all.

    x86 keeps all other orders by itself; taking a lock is an atomic exchange, which keeps this one
    too.
    """
    _fence_lock.acquire()
    _fence_lock.release()


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
        self._pages: dict[str, list[SharedPage]] = {}
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name = f"\0oneflow-{secrets.token_hex(16)}"
        self._listener.bind(name)
        self._listener.listen(128)
        self.address = name.encode()
        threading.Thread(target=self._serve, name="oneflow-pages", daemon=True).start()

    def publish(self, name: str, pages: Sequence[SharedPage]) -> None:
        """Let peers fetch `pages` as `name` from now on."""
        if len(pages) > MAX_FDS:
            raise TransportError(f"{len(pages)} pages in one name; at most {MAX_FDS}")
        with self._changed:
            self._pages[name] = list(pages)
            self._changed.notify_all()

    def withdraw(self, name: str) -> None:
        """Forgets `name`; who has fetched it keeps it."""
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
                pages = self._pages.get(name, [])
                fds = [page.fd for page in pages if page.fd >= 0]
                send_fds(peer, fds)


_server: PageServer | None = None
_server_lock = threading.Lock()


def page_server() -> PageServer:
    """This process's server, started at the first call."""
    global _server
    with _server_lock:
        if _server is None or _server.pid != os.getpid():
            _server = PageServer()
        return _server


def fetch_pages(address: bytes, name: str, timeout_s: float) -> list[SharedPage]:
    """Maps the pages that the process at `address` published as `name`.

    Raises TransportError if it is gone, another user's, or does not have them in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(timeout_s)
        try:
            peer.connect(address)
            check_same_user(peer)
            peer.send(name.encode())
            fds = recv_fds(peer)
        except OSError as error:
            raise TransportError(f"shared memory {name!r} of a peer: {error}") from error
    if not fds:
        raise TransportError(f"a peer has no shared memory named {name!r}")
    return [SharedPage.from_fd(fd) for fd in fds]


def send_fds(peer: socket.socket, fds: list[int]) -> None:
    """Passes descriptors over a Unix socket."""
    socket.send_fds(peer, [_REPLY.pack(len(fds))], fds)


def recv_fds(peer: socket.socket) -> list[int]:
    """Receives what `send_fds` sent. Raises TransportError if some are missing."""
    data, fds, _, _ = socket.recv_fds(peer, _REPLY.size, MAX_FDS)
    if not data or _REPLY.unpack(data)[0] != len(fds):
        for fd in fds:
            os.close(fd)
        raise TransportError("a peer closed before it passed its shared memory")
    for fd in fds:
        os.set_inheritable(fd, False)
    return fds


def check_same_user(peer: socket.socket) -> None:
    """Raises TransportError unless the process at the other end runs as the same user."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    if uid != os.getuid():
        raise TransportError(f"process {pid} of user {uid} asked for shared memory: refused")


def exchange_pages(
    group_name: str,
    my_rank: int,
    ranks: Sequence[int],
    pages: Sequence[SharedPage],
    kv: KeyValueStore,
    timeout_s: float = 60.0,
) -> dict[int, list[SharedPage]]:
    """Gives `pages` to all `ranks` and maps theirs: rank -> its pages, one's own as they are.

    group_name: never used before in this job. All ranks must call it. Raises TransportError.
    """
    server = page_server()
    server.publish(f"{group_name}/{my_rank}", pages)
    kv.put(f"pages/{group_name}/{my_rank}", server.address)
    result = {my_rank: list(pages)}
    for rank in ranks:
        if rank != my_rank:
            address = kv.get(f"pages/{group_name}/{rank}", timeout_s)
            result[rank] = fetch_pages(address, f"{group_name}/{rank}", timeout_s)
    return result


def publish_progress(page: SharedPage, index: int, value: int, sleepers: memoryview[int]) -> None:
    """Sets word `index` and wakes who sleeps on it. Only the owner of the word may call it.

    sleepers: words of which each waiter sets its own (see `wait_progress`).
    """
    page.words[index] = value
    full_fence()
    if any(sleepers):
        futex_wake(page, index)


def wait_progress(
    page: SharedPage,
    index: int,
    target: int,
    sleeper: int,
    check: Callable[[], None],
    spin_s: float,
) -> None:
    """Returns when word `index` is at least `target`: spins for `spin_s`, then sleeps.

    sleeper: index of the caller's own word, set while it sleeps.  check: called every 50 ms; raises
    to give up.
    """
    words = page.words
    if words[index] >= target:
        return
    now = time.perf_counter()
    limit, patience = now + spin_s, now + QUIET_SPIN_S
    while now < limit:
        if words[index] >= target:
            return
        if now > patience:
            os.sched_yield()
            if words[index] >= target:
                return
        now = time.perf_counter()
    words[sleeper] = 1
    try:
        while True:
            full_fence()
            seen = words[index]
            if seen >= target:
                return
            futex_wait(page, index, seen, 0.05)
            check()
    finally:
        words[sleeper] = 0
