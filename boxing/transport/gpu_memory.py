"""GPU memory that ranks read of each other.

Within a host each rank allocates its memory once and its peers map it (CUDA IPC), so they read it
in place: over NVLink, over PCIe or within the GPU that ranks share. Not run on a GPU yet
(docs/GPU.md).

Memory that a peer still maps must not be freed. So a rank that closes says so in its page, and the
owner frees its memory when all peers have said it, looking when it opens or closes other memory;
until then it stays.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from oneflow.boxing.transport.rank_pages import UNMAPPED, RankPages
from oneflow.boxing.transport.rendezvous import KeyValueStore
from oneflow.boxing.transport.waking import full_fence
from oneflow.kernels.array import Array, ArrayModule, GpuBlock

_WAIT_S = 60.0


@dataclass(eq=False)
class _Retired:
    """Memory that waits for peers to unmap it."""

    memory: GpuBlock | None
    pages: RankPages

    def is_free(self) -> bool:
        return all(page.words[UNMAPPED] for page in self.pages.by_rank.values())


_retired: list[_Retired] = []
_lock = threading.RLock()  # a garbage collection may release memory while other is opened


class GpuMemory:
    """Memory of the ranks of this host, as uint8 CuPy arrays by rank.

    nbytes_of: of a rank's memory.  pages: of these ranks; they belong to this object from now on.
    name: never used before in this job.  kv: how handles are exchanged.  The GPU to use must be
    current. Raises CUDA's errors, e.g. where two GPUs cannot reach each other.
    """

    def __init__(
        self, nbytes_of: Callable[[int], int], pages: RankPages, name: str, kv: KeyValueStore
    ) -> None:
        import cupy

        _free_retired()
        rank = pages.rank
        self._runtime = cupy.cuda.runtime
        self._mapped: list[int] = []
        nbytes = max(nbytes_of(rank), 1)
        # Not from CuPy's pool: a handle stands for a whole allocation, which the pool cuts up.
        memory: GpuBlock = cupy.cuda.memory.Memory(nbytes)
        self.arrays: dict[int, Array] = {rank: _bytes_at(cupy, memory, nbytes)}
        # At the end of the process the driver takes everything back, so nothing is left to do then.
        self._release = weakref.finalize(self, _release, self._runtime, self._mapped, memory, pages)
        self._release.atexit = False
        self.arrays[rank].fill(0)  # padding between values is summed with them and must be zero
        cupy.cuda.get_current_stream().synchronize()
        if len(pages.ranks) == 1:
            return
        kv.put(f"cuda/{name}/{rank}", self._runtime.ipcGetMemHandle(memory.ptr))
        try:
            for peer in (r for r in pages.ranks if r != rank):
                handle = bytes(kv.get(f"cuda/{name}/{peer}", _WAIT_S))
                self.arrays[peer] = self._map(cupy, handle, max(nbytes_of(peer), 1))
        except BaseException:
            self.close()
            raise

    def _map(self, cupy: ArrayModule, handle: bytes, nbytes: int) -> Array:
        address = self._runtime.ipcOpenMemHandle(handle)
        self._mapped.append(address)
        # Said to be on this rank's GPU, where its kernels run: CUDA reaches it by its address.
        device = cupy.cuda.runtime.getDevice()
        return _bytes_at(cupy, cupy.cuda.UnownedMemory(address, nbytes, None, device), nbytes)

    def close(self) -> None:
        """Unmap the peers' memory; own memory is freed once no peer maps it. Waits for nobody.
        It happens by itself when the object is forgotten.
        """
        self.arrays.clear()
        self._release()


def _release(runtime: ArrayModule, mapped: list[int], memory: GpuBlock, pages: RankPages) -> None:
    while mapped:
        runtime.ipcCloseMemHandle(mapped.pop())
    pages.mine.words[UNMAPPED] = 1
    full_fence()
    with _lock:
        _retired.append(_Retired(memory, pages))
    _free_retired()


def _free_retired() -> None:
    with _lock:
        done = [r for r in _retired if r.is_free()]
        for retired in done:
            _retired.remove(retired)
    for retired in done:
        retired.memory = None  # frees it
        retired.pages.close()


def _bytes_at(cupy: ArrayModule, memory: GpuBlock, nbytes: int) -> Array:
    view: Array = cupy.ndarray((nbytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
    return view
