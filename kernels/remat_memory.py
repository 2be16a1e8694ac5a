"""Memory that is dropped when a budget is used up, and computed again when it is read.

A `Storage` is the memory of one result. The kernel call that made it is kept with it, so that its
values can be dropped and made again: its inputs first, where they were dropped, too. Before memory
beyond the budget is taken, the storage is dropped whose

    seconds to compute it again, with its dropped neighbours / (bytes x time since its last use)

is the least: the heuristic of Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021).

Memory keeps its address: dropping gives its pages back to the operating system. So views of it,
which are plain NumPy arrays, stay valid. Two things are never dropped: memory without a call
(copied from elsewhere, such as parameters), and memory of which a part was written in place. Such a
write also changes the results of calls that read this memory: their results are made before the
write where they were dropped, and kept from then on. A result that is overwritten as a whole, by
`relu_` for instance, can still be dropped: calls that read its earlier values make them again.
"""

from __future__ import annotations

import mmap
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from oneflow.core.dtype import dtype_of
from oneflow.core.errors import InternalError
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import data_address

Host = np.ndarray[Any, Any]
PAGED = 1 << 16
"""Bytes from which a storage has pages of its own, and is dropped to make room."""
MOST_NEIGHBOURS = 64
"""Dropped storages that are counted into the cost of another."""
BYTES_PER_SECOND, FLOPS_PER_SECOND, CALL_SECONDS = 1e10, 1e11, 1e-5
"""Estimates of the pace of calls: their order matters, not the numbers."""


class Call:
    """A kernel call that can be made again.

    run: The kernel, of outputs and inputs.  inputs: Storages, and the views of them that were read.
    types: Of the outputs.  seconds: An estimate.
    """

    __slots__ = ("inputs", "outputs", "run", "seconds", "types")

    def __init__(
        self,
        run: Callable[..., None],
        inputs: Sequence[tuple[Storage, Host]],
        outputs: Sequence[Storage],
        types: Sequence[TensorType],
        seconds: float,
    ) -> None:
        self.run, self.inputs, self.types, self.seconds = run, list(inputs), types, seconds
        self.outputs = [weakref.ref(storage) for storage in outputs]

    def again(self) -> None:
        """Compute the outputs that were dropped; all inputs are there."""
        arrays: list[Host] = []
        made: list[Storage] = []
        for output, type_ in zip(self.outputs, self.types, strict=True):
            storage = output()
            if storage is None or storage.is_present:
                arrays.append(np.empty(type_.shape, type_.dtype.np))
            else:
                arrays.append(storage.whole(type_))
                made.append(storage)
        MEMORY.take(made)
        self.run(*arrays, *[view for _, view in self.inputs])
        MEMORY.recomputation_num += 1


class Storage:
    """The memory of one result.

    arrays: Number of arrays that programs hold of it.  locks: Calls under way that use it.
    call: Makes its values; None: it is never dropped.  readers: Storages whose calls read it.
    """

    __slots__ = (
        *("__weakref__", "_map", "arrays", "buffer", "call", "is_kept", "is_present", "locks"),
        *("nbytes", "readers", "used_at"),
    )

    def __init__(self, nbytes: int, held: Host | None = None) -> None:
        """Reserve addresses, or take over the memory of `held`, a contiguous array."""
        self.nbytes = nbytes
        self.arrays = self.locks = 0
        self.call: Call | None = None
        self.is_present = self.is_kept = False
        self.readers: weakref.WeakSet[Storage] = weakref.WeakSet()
        self.used_at = MEMORY.clock
        self._map: mmap.mmap | None = None
        if held is not None:
            self.buffer = held.reshape(-1).view(np.uint8)
            MEMORY.take([self])
        elif nbytes < PAGED:
            self.buffer = np.empty(nbytes, np.uint8)
        else:
            self._map = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.buffer = np.frombuffer(self._map, np.uint8)
        MEMORY.storages.add(self)

    def __del__(self) -> None:
        if self.is_present:
            MEMORY.allocated -= self.nbytes

    def whole(self, type_: TensorType) -> Host:
        """Return all of it as an array of a type."""
        made: Host = self.buffer.view(type_.dtype.np).reshape(type_.shape)
        return made

    @property
    def is_new(self) -> bool:
        """Whether it is the memory of one array that nobody has written or read yet."""
        return not self.is_present and self.call is None and self.arrays == 1

    @property
    def can_drop(self) -> bool:
        return self.is_present and self.call is not None and not self.locks and not self.is_kept

    def split_off(self) -> None:
        """Leave the values so far to a storage of their own, which is dropped: calls that read them
        read that one from now on.
        """
        call = self.call
        if call is None:
            raise InternalError("remat: memory without a call has no earlier values")
        earlier = Storage(self.nbytes)
        earlier.call, self.call = call, None
        call.outputs = [weakref.ref(earlier) if o() is self else o for o in call.outputs]
        for source, _ in call.inputs:
            source.readers.add(earlier)
        earlier.readers, self.readers = self.readers, weakref.WeakSet()
        for reader in {id(r.call): r.call for r in earlier.readers if r.call is not None}.values():
            reader.inputs = [
                (earlier, self._seen_in(earlier, view)) if storage is self else (storage, view)
                for storage, view in reader.inputs
            ]

    def _seen_in(self, other: Storage, view: Host) -> Host:
        """Return the view of `other` that `view` is of this storage."""
        offset = data_address(view) - data_address(self.buffer)
        seen: Host = np.ndarray(view.shape, view.dtype, other.buffer, offset, view.strides)
        return seen

    def drop(self) -> None:
        """Give the memory back. The values are computed again when they are read."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
        else:
            self.buffer.fill(0)
        self.is_present = False
        MEMORY.allocated -= self.nbytes

    def forget_array(self) -> None:
        """Drop the values when no array of a program is left; other calls may still read them."""
        self.arrays -= 1
        if not self.arrays and self.can_drop:
            self.drop()
            MEMORY.eager_eviction_num += 1


class Memory:
    """All storages of this process, their budget and counts.

    budget: Bytes; 0: no limit.  clock: Number of calls so far.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.budget = self.allocated = self.clock = 0
        self.drops_small = False
        self.storages: weakref.WeakSet[Storage] = weakref.WeakSet()
        self._has_warned = False
        self.clear_stats()

    def clear_stats(self) -> None:
        """Begin to count anew."""
        self.forced_eviction_num = self.eager_eviction_num = self.recomputation_num = 0
        self.recomputation_seconds = 0.0

    def take(self, storages: Iterable[Storage]) -> None:
        """Count storages as present; others are dropped to make room for them."""
        some = list(storages)
        self.make_room(sum(s.nbytes for s in some))
        for storage in some:
            storage.is_present = True
            self.allocated += storage.nbytes
            self.use(storage)

    def use(self, storage: Storage) -> None:
        """Note that a storage is read or written now."""
        storage.used_at = self.clock

    def make_room(self, nbytes: int) -> None:
        """Drop storages until so many bytes fit into the budget; warn once if they cannot."""
        while self.budget and self.allocated + nbytes > self.budget:
            least = PAGED if not self.drops_small else 1
            candidates = [s for s in self.storages if s.can_drop and s.nbytes >= least]
            if not candidates:
                self._warn(nbytes)
                return
            min(candidates, key=self._worth).drop()
            self.forced_eviction_num += 1

    def _warn(self, nbytes: int) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"remat: {self.allocated + nbytes:,} bytes are needed, of which none can be "
                f"dropped; the budget is {self.budget:,} (flow.remat.set_budget)",
                stacklevel=2,
            )

    def _worth(self, storage: Storage) -> tuple[float, int]:
        """The score by which storages are kept, and an order of those with equal ones."""
        staleness = max(self.clock - storage.used_at, 1)
        return self._cost(storage) / (max(storage.nbytes, 1) * staleness), storage.used_at

    def _cost(self, storage: Storage) -> float:
        """Seconds to compute it again, with all that was dropped before and behind it."""
        total = storage.call.seconds if storage.call is not None else 0.0
        for step in (_absent_inputs, _absent_readers):
            seen: set[int] = set()
            open_ = step(storage)
            while open_ and len(seen) < MOST_NEIGHBOURS:
                one = open_.pop()
                if id(one) not in seen and one.call is not None:
                    seen.add(id(one))
                    total += one.call.seconds
                    open_ += step(one)
        return total

    def bring(self, wanted: Iterable[Storage]) -> None:
        """Compute dropped storages again, their inputs first."""
        open_ = [storage for storage in wanted if not storage.is_present]
        if not open_:
            return
        began = perf_counter()
        held: list[tuple[Storage, Sequence[tuple[Storage, Host]]]] = []
        while open_:
            storage = open_[-1]
            call = storage.call
            if storage.is_present:
                open_.pop()
                continue
            if call is None:  # memory that nobody has written yet
                self.take([storage])
                continue
            if not held or held[-1][0] is not storage:
                # What it is made of stays from now on until it has been made.
                held.append((storage, call.inputs))
                _lock(call.inputs, 1)
            missing = [one for one, _ in call.inputs if not one.is_present]
            if missing:
                open_ += missing
                continue
            call.again()
            _lock(held.pop()[1], -1)
            open_.pop()
        self.recomputation_seconds += perf_counter() - began

    @contextmanager
    def holding(self, storages: Iterable[Storage]) -> Iterator[None]:
        """Keep storages in memory, with their values, for a with-block."""
        some = list(storages)
        with self.lock:
            self.clock += 1
            for storage in some:
                storage.locks += 1
            try:
                self.bring(some)
                for storage in some:
                    self.use(storage)
                yield
            finally:
                for storage in some:
                    storage.locks -= 1

    def written(self, storage: Storage) -> None:
        """Prepare for a write in place: nothing will be computed again of the old values."""
        self.bring([storage])
        storage.locks += 1
        try:
            kept, lost, open_ = [], [], list(storage.readers)
            seen: set[int] = set()
            while open_:
                one = open_.pop()
                if id(one) in seen or one.call is None:
                    continue
                seen.add(id(one))
                if one.is_present or one.arrays:
                    kept.append(one)
                else:  # nobody holds it, but others are made of it
                    lost.append(one)
                    open_ += list(one.readers)
            with self.holding(kept):  # all at once: none is dropped for another
                for one in (*kept, *lost, storage):
                    one.call = None
            storage.readers.clear()
        finally:
            storage.locks -= 1


def _lock(inputs: Sequence[tuple[Storage, Host]], change: int) -> None:
    for storage, _ in inputs:
        storage.locks += change


def _absent_inputs(storage: Storage) -> list[Storage]:
    call = storage.call
    return [] if call is None else [s for s, _ in call.inputs if not s.is_present]


def _absent_readers(storage: Storage) -> list[Storage]:
    return [s for s in storage.readers if not s.is_present]


MEMORY = Memory()


class Kept(Protocol):
    """An array in a storage; held: the NumPy array."""

    @property
    def storage(self) -> Storage: ...
    @property
    def held(self) -> Host: ...


def keep_call(
    run: Callable[..., None], outs: Sequence[Kept], inputs: Sequence[Kept], flops: float = 0.0
) -> None:
    """Keep the kernel call that made `outs` of `inputs` with their storages."""
    nbytes = sum(x.held.nbytes for x in (*outs, *inputs))
    seconds = nbytes / BYTES_PER_SECOND + flops / FLOPS_PER_SECOND + CALL_SECONDS
    types = [TensorType(tuple(x.held.shape), dtype_of(x.held.dtype)) for x in outs]
    given = [(x.storage, x.held) for x in inputs]
    call = Call(run, given, [out.storage for out in outs], types, seconds)
    for out in outs:
        out.storage.call = call
        for source, _ in given:
            source.readers.add(out.storage)
