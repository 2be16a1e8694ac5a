"""Values between readers and tensors: batches of records and of images, here or in a graph.

Eagerly each step of an input pipeline is done at once. In the `build` of a graph nothing is read;
records and images stand for those that each step will read (`Later`), and where a tensor is made of
them the graph gets an input that it feeds itself (`Mode.source`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from oneflow.core.dispatch import current_mode
from oneflow.core.dtype import dtype_of
from oneflow.core.errors import ConfigError, SbpError
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, SbpLike, Split, as_nd_sbp
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.functional.random_state import host_seed
from oneflow.tensor.tensor import Tensor, wrap, wrap_global
from oneflow.utils.data.records import Share

T = TypeVar("T")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Place:
    """The ranks that read a batch together, and how it is split among them; local if None."""

    placement: Placement | None = None
    sbp: NdSbp = ()

    @classmethod
    def of(cls, placement: Placement | None, sbp: SbpLike | None, device: object = None) -> Place:
        """The place that a reader is given. Raises SbpError, ConfigError for impossible ones."""
        if placement is None:
            if sbp is not None:
                raise SbpError("a reader with sbp= needs placement=")
            return cls()
        if device is not None:
            raise ConfigError("a reader takes device= or placement=, not both")
        if sbp is None:
            raise SbpError("a reader with placement= needs sbp=")
        nd_sbp = as_nd_sbp(sbp, placement.ndim)
        if any(s is not BROADCAST and s != Split(0) for s in nd_sbp):
            raise SbpError(f"a batch is split along dim 0 or broadcast, not {sbp!r}")
        return cls(placement, nd_sbp)

    @property
    def share(self) -> Share:
        """The part of each batch that this rank reads."""
        if self.placement is None:
            return Share()
        number, count, at = 0, 1, self.placement.coordinate(world().rank)
        for place, size, sbp in zip(at, self.placement.hierarchy, self.sbp, strict=True):
            if not sbp.is_broadcast:
                number, count = number * size + place, count * size
        return Share(number, count)

    def seed(self, wanted: int | None) -> int:
        """The seed of a reader: the one that is wanted, or one that all ranks agree on."""
        if wanted is not None and wanted >= 0:
            return wanted
        own = host_seed()
        if self.placement is None or world().world_size == 1:
            return own
        first = self.placement.rank_ids[0]
        everyone = world().everyone.gather_bytes(own.to_bytes(8, "little"), "seed of a reader")
        return int.from_bytes(everyone[first], "little")

    def tensor(self, array: Array) -> Tensor:
        """This rank's rows as a tensor."""
        if self.placement is None:
            return wrap(array)
        rows = array.shape[0] * self.share.count
        type_ = TensorType((rows, *array.shape[1:]), dtype_of(array.dtype))
        return wrap_global(array, type_, self.placement, self.sbp)


@dataclass(frozen=True)
class Records:
    """A batch of messages, not decoded."""

    messages: Sequence[Any]
    place: Place


class Later:
    """A value that each step of a graph makes anew, once for all that need it.

    make: called with the values of `inputs` in that step.
    """

    def __init__(self, make: Callable[..., Any], *inputs: object) -> None:
        self.make, self.inputs = make, inputs
        self._step: object = None
        self._value: Any = None

    def value(self, step: object) -> Any:
        """The value in a step, which any object stands for that no other step has."""
        if self._step is not step:
            self._value = self.make(*(now(x, step) for x in self.inputs))
            self._step = step
        return self._value


def now(x: object, step: object) -> Any:
    """A value, or that of a `Later` in a step."""
    return x.value(step) if isinstance(x, Later) else x


def made(make: Callable[..., T], *inputs: object) -> Any:
    """`make(*inputs)`, in a graph later."""
    if current_mode().reads_later:
        return Later(make, *inputs)
    _settle()
    return make(*inputs)


def tensor_of(make: Callable[..., Tensor], *inputs: object) -> Tensor:
    """The tensor `make(*inputs)`; in a graph an input that each step makes anew."""
    _settle()
    found: Tensor = current_mode().source(lambda step: make(*(now(x, step) for x in inputs)))
    return found


# ---- threads -------------------------------------------------------------------------------------

# Graphs read one step ahead, all in one thread; what is read at once waits until that is through,
# so that a reader is never asked twice at a time, and always in the order of the program.


def read_ahead(read: Callable[[], T]) -> Future[T]:
    """Begin to read, after all that is being read ahead."""
    global _latest
    found = _latest = _reading().submit(read)
    return found


def _settle() -> None:
    if _latest is not None and not threading.current_thread().name.startswith(_AHEAD):
        wait([_latest])


_AHEAD = "reading"
_latest: Future[Any] | None = None


@cache
def _reading() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, _AHEAD)


WORKERS = 2


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(WORKERS, "decoding")


def _forget() -> None:
    """A fork has none of the threads."""
    global _latest
    _latest = None
    _pool.cache_clear()
    _reading.cache_clear()


os.register_at_fork(after_in_child=_forget)


def in_parallel(function: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
    """Call the function for each item, by threads: decoders of images let others run meanwhile."""
    return list(_pool().map(function, items)) if len(items) > 1 else [*map(function, items)]
