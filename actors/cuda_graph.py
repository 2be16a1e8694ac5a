"""A segment's kernels as one CUDA graph: recorded in its second act, replayed with one launch from
then on.

Off by default (ONEFLOW_CUDA_GRAPHS=1): not run on a GPU yet.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from oneflow.kernels.array import GpuStream

Call = Callable[[], Any]


class Replayed:
    """The calls of one act, always the same, on arrays that stay where they are.

    name: of the actor, for messages.

    The first act runs the calls as they are, which compiles their kernels. The second records them;
    what they allocate then comes from a memory pool of their own, so that nobody else is given
    memory the graph writes to. What cannot be recorded, because it waits for the device or makes
    values on the host (random numbers), is said once and runs as it is.
    """

    def __init__(self, name: str, calls: Sequence[Call]) -> None:
        import cupy

        self._cupy: Any = cupy
        self._name = name
        self._calls = calls
        self._pool = cupy.cuda.MemoryPool()
        self._graph: Any = None
        self._acts = 0
        self._is_plain = any(getattr(call, "changes_each_act", False) for call in calls)

    def __call__(self) -> None:
        self._acts += 1
        if self._acts == 2 and not self._is_plain:
            self._record()
        if self._graph is not None:
            self._graph.launch()
        else:
            for call in self._calls:
                call()

    def _record(self) -> None:
        """Nothing is executed while it is recorded, so a recording that fails has changed
        nothing.
        """
        cuda = self._cupy.cuda
        stream = cuda.Stream(non_blocking=True)
        with stream, cuda.using_allocator(self._pool.malloc):
            stream.begin_capture()
            try:
                for call in self._calls:
                    call()
            except (
                cuda.runtime.CUDARuntimeError,
                cuda.driver.CUDADriverError,
                RuntimeError,
            ) as error:
                self._give_up(stream, error)
                return
            self._graph = stream.end_capture()

    def _give_up(self, stream: GpuStream, cause: Exception) -> None:
        self._is_plain = True
        warnings.warn(
            f"{self._name}: its kernels cannot be recorded as a CUDA graph "
            f"({cause}); they are launched one by one",
            RuntimeWarning,
            stacklevel=2,
        )
        try:
            stream.end_capture()
        except self._cupy.cuda.runtime.CUDARuntimeError:
            return  # as CUDA ends a recording that was invalidated
