"""Connects the ranks of one job whose registers are in GPU memory.

Within a host each rank allocates its shared registers once and its peers map them (CUDA IPC), so
boxing reads a peer's memory in place: over NVLink, over PCIe or within the GPU that ranks share.
Messages go through the shared-memory mailboxes as on the CPU. A kernel whose result a peer may read
is waited for before Ready is posted, and one that read a peer's memory before Freed is. From other
hosts the parts a rank reads travel through pinned memory and TCP into a mirror on its own GPU.

Memory that a peer still maps must not be freed. So a rank that closes says so in its mailbox page,
and the owner frees its registers when all peers have said it, looking when it opens or closes a
link; until then they stay.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow.actors.bind import shared_nbytes
from oneflow.boxing.shared import SharedPage, full_fence
from oneflow.core.metrics import METRICS
from oneflow.core.plan import Plan

UNMAPPED_WORD = 1
"""Word of a rank's mailbox page that is 1 once it maps no peer's registers any more."""
_WAIT_S = 60.0


def is_on_gpu(plan: Plan) -> bool:
    """Are the registers of this plan in GPU memory?"""
    return any(actor.placement.type == "cuda" for actor in plan.actors)


@dataclass(eq=False)
class _Retired:
    """Registers that wait for peers to unmap them. pages: of all ranks of this host."""

    memory: Any
    pages: Sequence[SharedPage]

    def is_free(self) -> bool:
        return all(page.words[UNMAPPED_WORD] for page in self.pages)


_retired: list[_Retired] = []
_lock = threading.RLock()  # a garbage collection may release one link while another is opened


class DeviceRegisters:
    """The shared registers of the ranks of this host, as uint8 CuPy arrays by rank.

    near: the ranks of this host, ascending, and `pages` their mailboxes in that order.
    name: of the job.  kv: how handles are exchanged.  The GPU to use must be current.
    Raises what CUDA raises, e.g. where two GPUs cannot reach each other.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        near: list[int],
        pages: Sequence[SharedPage],
        name: str,
        kv: Any,
    ) -> None:
        import cupy

        _free_retired()
        self._runtime = cupy.cuda.runtime
        self._mapped: list[int] = []
        nbytes = max(shared_nbytes(plan, rank), 1)
        # Not from CuPy's pool: a handle stands for a whole allocation, which the pool cuts up.
        memory: Any = cupy.cuda.memory.Memory(nbytes)
        self.arrays: dict[int, Any] = {rank: _bytes_at(cupy, memory, nbytes)}
        # At the end of the process the driver takes everything back, so nothing is left to do then.
        self._release = weakref.finalize(
            self, _release, self._runtime, self._mapped, memory, pages[near.index(rank)], pages
        )
        self._release.atexit = False
        self.arrays[rank].fill(0)  # padding between values is summed with them and must be zero
        cupy.cuda.get_current_stream().synchronize()
        if len(near) == 1:
            return
        kv.put(f"cuda/{name}/{rank}", self._runtime.ipcGetMemHandle(memory.ptr))
        try:
            for peer in (r for r in near if r != rank):
                self.arrays[peer] = self._map(cupy, plan, peer, name, kv)
        except BaseException:
            self.close()
            raise

    def _map(self, cupy: Any, plan: Plan, peer: int, name: str, kv: Any) -> Any:
        handle = bytes(kv.get(f"cuda/{name}/{peer}", _WAIT_S))
        address = self._runtime.ipcOpenMemHandle(handle)
        self._mapped.append(address)
        nbytes = max(shared_nbytes(plan, peer), 1)
        # Said to be on this rank's GPU, where its kernels run: CUDA reaches it by its address.
        device = cupy.cuda.runtime.getDevice()
        return _bytes_at(cupy, cupy.cuda.UnownedMemory(address, nbytes, None, device), nbytes)

    def close(self) -> None:
        """Unmaps the peers' registers; own ones are freed once no peer maps them. Waits for nobody.
        It happens by itself when the job is forgotten. The pages belong to this object from now on.
        """
        self.arrays.clear()
        self._release()


def _release(
    runtime: Any, mapped: list[int], memory: Any, mine: SharedPage, pages: Sequence[SharedPage]
) -> None:
    while mapped:
        runtime.ipcCloseMemHandle(mapped.pop())
    mine.words[UNMAPPED_WORD] = 1
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
        for page in retired.pages:
            page.close()


def _bytes_at(cupy: Any, memory: Any, nbytes: int) -> Any:
    return cupy.ndarray((nbytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))


def device_mirror(nbytes: int) -> Any:
    """Memory on the current GPU for a copy of a far rank's registers."""
    import cupy

    return cupy.zeros(max(nbytes, 1), cupy.uint8)


def staging_for(part: Any) -> np.ndarray[Any, Any]:
    """Pinned host memory like a CuPy array, for what goes over a socket."""
    import cupyx

    raw: np.ndarray[Any, Any] = cupyx.empty_pinned((max(part.nbytes, 1),), np.uint8)
    shaped: np.ndarray[Any, Any] = raw[: part.nbytes].view(part.dtype).reshape(part.shape)
    METRICS.pinned(raw.nbytes)
    weakref.finalize(shaped, METRICS.pinned, -raw.nbytes).atexit = False
    return shaped


def to_staging(staged: np.ndarray[Any, Any], part: Any) -> None:
    """Waits until the values are there."""
    if part.size:
        import cupy

        cupy.ascontiguousarray(part).get(out=staged)


def from_staging(part: Any, staged: np.ndarray[Any, Any]) -> None:
    """Waits until the values are on the GPU, so that `staged` may be written again."""
    if part.size:
        import cupy

        part[...] = cupy.asarray(staged)
        cupy.cuda.get_current_stream().synchronize()
