"""Collectives of GPUs through NCCL (CuPy's binding). Arrays are CuPy arrays.

Not run on a GPU yet (docs/GPU.md): checked with a stand-in for CuPy and NCCL.

Calls return when they have been started. They run on a stream of their own that waits for the work
launched before them on the current stream, which in turn waits for them: inside `deferred()` not
until the block ends, so that kernels launched meanwhile overlap with them. Memory comes from the
current stream's pool and is held until that stream waits for the call, so it is never reused early.

`CallLog` sees to it that ranks call the same, `DeviceWatch` that nobody waits for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from oneflow.boxing.boxes import balanced_part
from oneflow.boxing.collectives.base import REDUCTIONS, CallInfo, Collectives
from oneflow.boxing.collectives.call_log import CallLog
from oneflow.boxing.collectives.device import DeviceCollectives
from oneflow.boxing.collectives.device_watch import DeviceWatch, add_watch, remove_watch
from oneflow.boxing.collectives.exchange import (
    Exchange,
    Read,
    chains,
    combine_all,
    need_source,
    view_of,
)
from oneflow.boxing.collectives.patterns import blocks_of, pattern
from oneflow.boxing.transport.rendezvous import SLICE_S, Check, KeyValueStore
from oneflow.core.errors import HangError, OneFlowError, TransportError
from oneflow.kernels.array import Array, ArrayModule, GpuEvent, GpuStream, address

_TYPES = {
    "int8": "NCCL_INT8", "uint8": "NCCL_UINT8", "int32": "NCCL_INT32", "int64": "NCCL_INT64",
    "float16": "NCCL_FLOAT16", "float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64",
    "bfloat16": "NCCL_BFLOAT16",
}  # fmt: skip
_OPS = {"sum": "NCCL_SUM", "prod": "NCCL_PROD", "max": "NCCL_MAX", "min": "NCCL_MIN"}

CLOSE_S = 5.0
"""So long `close` waits for calls that are still running."""

_PAUSE_S = 0.001


class NcclRefused(TransportError):
    """NCCL cannot join some ranks.  why: where, and in its words."""

    def __init__(self, ranks: Sequence[int], why: str) -> None:
        super().__init__(f"NCCL cannot join the ranks {list(ranks)}: {why}")
        self.why = why


class NcclCollectives(DeviceCollectives):
    """One rank's end. The GPU to use must be current. Raises NcclRefused where NCCL cannot join the
    ranks, on all of them.

    group_name: never used before in this job.  guard: host collectives of the same ranks.
    own_stream: False runs calls on the stream that is current.
    """

    has_own_all_reduce = True

    def __init__(
        self,
        group_name: str,
        rank: int,
        ranks: Sequence[int],
        kv: KeyValueStore,
        guard: Collectives,
        check: Check | None = None,
        timeout_s: float = 300.0,
        own_stream: bool = True,
    ) -> None:
        import cupy
        from cupy.cuda import nccl

        super().__init__(rank, ranks, check, timeout_s)
        self._cupy, self._nccl = cupy, nccl
        self._xp = cupy
        self._guard = guard
        self._types: dict[np.dtype[Any], int] = {}
        self._stream = cupy.cuda.Stream(non_blocking=True) if own_stream else None
        self._held: list[Any] | None = None
        self._communicator = self._open(f"nccl/{group_name}", kv)
        self._log = CallLog(guard)
        self._watch = DeviceWatch(group_name, self, self._communicator, kv)
        add_watch(self._watch)

    def _open(self, key: str, kv: KeyValueStore) -> Any:
        """Open a communicator in a thread, since NCCL waits without end for a rank that died."""
        if self.index == 0:
            kv.put(key, _id_bytes(self._nccl.get_unique_id()))
        unique = _unique_id(self._cupy, kv.get(key, self.timeout_s))
        device, opened = self._cupy.cuda.Device().id, _Opened()

        def run() -> None:
            try:
                with self._cupy.cuda.Device(device):
                    opened.result = self._nccl.NcclCommunicator(self.size, unique, self.index)
            except Exception as error:
                opened.error = error

        thread = threading.Thread(target=run, name="oneflow-nccl-init", daemon=True)
        thread.start()
        started_at = time.monotonic()
        while thread.is_alive():
            thread.join(SLICE_S)
            if thread.is_alive():
                self._check_opening(time.monotonic() - started_at)
                self._check_refused(key, kv)
        if opened.error is not None:
            kv.put(f"{key}/refused", f"on rank {self.rank}: {opened.error}".encode())
            raise NcclRefused(self.ranks, f"on rank {self.rank}: {opened.error}")
        return opened.result

    def _check_refused(self, key: str, kv: KeyValueStore) -> None:
        """A rank where NCCL has failed says so to those that still wait for it."""
        try:
            reason = kv.get(f"{key}/refused", SLICE_S)
        except OneFlowError:
            return
        raise NcclRefused(self.ranks, reason.decode())

    def _check_opening(self, waited_s: float) -> None:
        if self._peer_check is not None:
            self._peer_check(self.peers)
        if waited_s > self.timeout_s:
            raise HangError(
                f"NCCL has not joined the ranks {list(self.ranks)} within {self.timeout_s:g} s; "
                "NCCL_DEBUG=INFO shows what it tries"
            )

    # ---- more than the primitives ----------------------------------------------------------------

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, the current stream does not wait for calls: kernels launched meanwhile overlap
        with them. Results of calls may be used, and their inputs overwritten, after the block only.
        """
        if self._stream is None or self._held is not None:
            yield
            return
        self._held = []
        try:
            yield
        finally:
            held, self._held = self._held, None
            if held:
                self._current().wait_event(self._recorded(self._stream))

    def all_reduce_each(self, xs: Sequence[Any], op: str = "sum") -> list[Any]:
        """`all_reduce` of each of several arrays, in one launch."""
        kinds = "; ".join(f"{x.dtype.name}{list(x.shape)}" for x in xs)
        info = self._info(f"all_reduce_each({op}) {kinds}")
        sources = [self._cupy.ascontiguousarray(x) for x in xs]
        if not all(self._adds(x) for x in sources):
            results = [self._cupy.empty_like(x) for x in sources]
            for source, result in zip(sources, results, strict=True):
                self._all_reduce(info, source, result, op)
            return results
        results = [self._cupy.empty_like(x) for x in sources]

        def launch(stream: int) -> None:
            with self._group():
                for source, result in zip(sources, results, strict=True):
                    self._launch_all_reduce(source, result, op, stream)

        self._run(info, launch, sources, results)
        self.received_nbytes += sum(map(self._all_reduced_nbytes, sources))
        return results

    def gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        """Gather bytes, which is done on the host."""
        return self._guard.gather_bytes(payload, what)

    def barrier(self, what: str = "barrier") -> None:
        """Returns when all ranks have come and the GPU calls of this one are done."""
        self.synchronize()
        self._guard.barrier(what)

    def synchronize(self) -> None:
        """Waits until all calls are done. Raises the error for which they were given up."""
        if self._stream is not None:
            self._stream.synchronize()
        self._current().synchronize()
        self._watch.raise_if_broken()

    # ---- what NCCL does better than exchanges ----------------------------------------------------

    def _all_reduce(self, info: CallInfo, source: Array, out: Array, op: str) -> None:
        if not self._adds(source):
            super()._all_reduce(info, source, out, op)
            return
        self._run(
            info, lambda stream: self._launch_all_reduce(source, out, op, stream), source, out
        )
        self.received_nbytes += self._all_reduced_nbytes(source)

    def _launch_all_reduce(self, source: Array, out: Array, op: str, stream: int) -> None:
        self._communicator.allReduce(
            address(source), address(out), source.size, self._type(source), self._op(op), stream
        )

    def _reduce_scatter(self, info: CallInfo, source: Array, out: Array, op: str) -> None:
        """NCCL needs equal parts; others go as an exchange."""
        if source.shape[0] % self.size or not self._adds(source):
            super()._reduce_scatter(info, source, out, op)
            return
        call = self._communicator.reduceScatter
        kind, operation = self._type(source), self._op(op)
        self._run(
            info,
            lambda stream: call(address(source), address(out), out.size, kind, operation, stream),
            source,
            out,
        )
        self.received_nbytes += out.nbytes * (self.size - 1)

    def _all_gather(self, info: CallInfo, flat: Array, out: Array, sizes: tuple[int, ...]) -> None:
        if len(set(sizes)) > 1:
            super()._all_gather(info, flat, out, sizes)
            return
        call, kind = self._communicator.allGather, self._nccl.NCCL_UINT8
        self._run(
            info,
            lambda stream: call(address(flat), address(out), flat.nbytes, kind, stream),
            flat,
            out,
        )
        self.received_nbytes += out.nbytes - flat.nbytes

    def _broadcast(self, info: CallInfo, flat: Array, out: Array, source_rank: int) -> None:
        call, kind = self._communicator.broadcast, self._nccl.NCCL_UINT8
        root = self.ranks.index(source_rank)
        self._run(
            info,
            lambda stream: call(address(flat), address(out), flat.nbytes, kind, root, stream),
            flat,
            out,
        )
        self.received_nbytes += 0 if self.rank == source_rank else out.nbytes

    def _exchange(
        self,
        info: CallInfo,
        source: Array | None,
        target: Array,
        exchange: Exchange,
        reduce: np.ufunc,
    ) -> None:
        """One group of sends and receives, of exactly the bytes that are read; or the one call of
        NCCL that does the same.

        A part that lies in one piece in the source is sent, and in the target received, without a
        copy.
        """
        if self._as_one_call(info, source, target, exchange, reduce):
            return

        def launch(stream: int) -> None:
            if self.rank in exchange.zero_filled:
                target[...] = 0
            parts = self._parts(source, exchange)
            arriving = self._arriving(target, exchange)
            with self._group():
                for peer in self.peers:
                    self._send_to(peer, parts, exchange, stream)
                for read, data in arriving:
                    self._receive(data, read.source_rank, stream)
            self._finish(source, target, exchange, arriving, reduce)

        self._run(info, launch, source, target)
        self.received_nbytes += exchange.received_numel(self.rank) * target.dtype.itemsize

    def _as_one_call(
        self,
        info: CallInfo,
        source: Array | None,
        target: Array,
        exchange: Exchange,
        reduce: np.ufunc,
    ) -> bool:
        """Does an all_gather or reduce_scatter of equal parts; all ranks decide alike."""
        kind = pattern(exchange)
        sums = kind == "reduce_scatter"
        if not kind or exchange.ranks != self.ranks:
            return False
        if sums and not (reduce is REDUCTIONS["sum"] and self._adds(target)):
            return False
        mine = exchange.reads(self.rank)
        own = next(read for read in mine if read.source_rank == self.rank)
        given, into_slices = own.source_slices, own.target_slices
        if sums:
            given = blocks_of(given, self.size)
        else:
            into_slices = blocks_of(into_slices, self.size)
        part: Array = self._cupy.ascontiguousarray(view_of(need_source(self.rank, source), given))
        into: Array = view_of(target, into_slices)
        out: Array = into if into.flags.c_contiguous else self._cupy.empty(into.shape, into.dtype)

        def launch(stream: int) -> None:
            places = address(part), address(out)
            if sums:
                add, number = self._op("sum"), self._type(target)
                self._communicator.reduceScatter(*places, out.size, number, add, stream)
            else:
                self._communicator.allGather(*places, part.nbytes, self._nccl.NCCL_UINT8, stream)
            if out is not into:
                self._cupy.copyto(into, out)

        self._run(info, launch, part, out, target)
        self.received_nbytes += exchange.received_numel(self.rank) * target.dtype.itemsize
        return True

    def _parts(self, source: Array | None, exchange: Exchange) -> dict[int, Array]:
        """Return the parts that others read: by offset in the packed data, each as one piece of
        memory.
        """
        if source is None:
            return {}
        found = {}
        for part in exchange.packed(self.rank):
            found[part.offset] = self._cupy.ascontiguousarray(view_of(source, part.slices))
        return found

    def _arriving(self, target: Array, exchange: Exchange) -> list[tuple[Read, Array]]:
        """(read, where its data arrive): in the target itself if they only overwrite one piece."""
        found = []
        for read in exchange.reads(self.rank):
            if read.source_rank != self.rank and read.numel:
                into = view_of(target, read.target_slices)
                if read.add or not into.flags.c_contiguous:
                    into = self._cupy.empty(into.shape, into.dtype)
                found.append((read, into))
        return found

    def _send_to(self, peer: int, parts: dict[int, Array], exchange: Exchange, stream: int) -> None:
        for read in exchange.reads(peer):
            if read.source_rank == self.rank and read.numel:
                part, to = parts[read.offset], self.ranks.index(peer)
                kind = self._nccl.NCCL_UINT8
                self._communicator.send(address(part), part.nbytes, kind, to, stream)

    def _receive(self, data: Array, peer: int, stream: int) -> None:
        kind = self._nccl.NCCL_UINT8
        self._communicator.recv(address(data), data.nbytes, kind, self.ranks.index(peer), stream)

    def _finish(
        self,
        source: Array | None,
        target: Array,
        exchange: Exchange,
        arriving: list[tuple[Read, Array]],
        reduce: np.ufunc,
    ) -> None:
        """Own parts, and those that have arrived beside the target, in the order of the reads."""
        arrived = iter(arriving)
        for chain in chains([read for read in exchange.reads(self.rank) if read.numel]):
            into = view_of(target, chain[0].target_slices)
            pieces = [into] if chain[0].add else []
            for read in chain:
                if read.source_rank == self.rank:
                    pieces.append(view_of(need_source(self.rank, source), read.source_slices))
                else:
                    pieces.append(next(arrived)[1])
            if len(pieces) > 1 or address(pieces[0]) != address(into):
                combine_all(reduce, pieces, into)

    # ---- starting a call -------------------------------------------------------------------------

    def _run(self, info: CallInfo, launch: Callable[[int], None], *held: object) -> None:
        """Starts a call. launch: with the stream to use current; held: all arrays it works on."""
        self._watch.raise_if_broken()
        work = self._watch.begin(self.calls, info)
        try:
            self._log.agree(self.calls, info)
            with self._watch.starting:
                self._watch.raise_if_broken()
                work.event = self._launch(launch, held)
        except BaseException as error:
            self._watch.drop(work)
            self._watch.raise_if_broken()  # then `error` comes of the abort, or says less
            if isinstance(error, self._nccl.NcclError):
                raise TransportError(f"{info.text}: NCCL: {error}") from error
            raise
        self._watch.raise_if_broken()

    def _launch(self, launch: Callable[[int], None], held: tuple[object, ...]) -> GpuEvent:
        """Returns the event behind it."""
        current = self._current()
        if self._stream is None:
            launch(int(current.ptr))
            return self._recorded(current)
        self._stream.wait_event(self._recorded(current))
        with self._stream:
            launch(int(self._stream.ptr))
        event = self._recorded(self._stream)
        if self._held is None:
            current.wait_event(event)
        else:
            self._held.append(held)
        return event

    def _current(self) -> GpuStream:
        stream: GpuStream = self._cupy.cuda.get_current_stream()
        return stream

    def _recorded(self, stream: GpuStream) -> GpuEvent:
        return stream.record(self._cupy.cuda.Event(disable_timing=True))

    @contextmanager
    def _group(self) -> Iterator[None]:
        """NCCL calls inside are one launch."""
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    def _adds(self, x: Array) -> bool:
        """Can NCCL reduce such elements? If not, kernels add them after an exchange."""
        return self._type(x) >= 0

    def _type(self, x: Array) -> int:
        """NCCL's number for an element type, -1 for one it does not know."""
        found = self._types.get(x.dtype)
        if found is None:
            name = _TYPES.get(x.dtype.name, "")
            found = self._types[x.dtype] = int(getattr(self._nccl, name, -1) if name else -1)
        return found

    def _op(self, op: str) -> int:
        return int(getattr(self._nccl, _OPS[op]))

    def _all_reduced_nbytes(self, x: Array) -> int:
        """Return the bytes that a rank must receive: its part of all others, and the parts that
        others summed.
        """
        start, stop = balanced_part(x.size, self.size, self.index)
        own = stop - start
        return int((own * (self.size - 1) + x.size - own) * x.dtype.itemsize)

    # ---- the end ---------------------------------------------------------------------------------

    def abort(self, error: Exception) -> None:
        """End the calls that still wait for a peer. All later calls but `close` raise `error`."""
        self._watch.give_up(error)

    def close(self) -> None:
        """Gives the communicator back; calls that do not end within CLOSE_S are aborted."""
        until = time.monotonic() + CLOSE_S
        while not self._watch.is_idle and time.monotonic() < until:
            time.sleep(_PAUSE_S)
        if not self._watch.is_idle:
            self._watch.give_up(TransportError(f"closed while {self.ranks} were in a GPU call"))
        remove_watch(self._watch)
        if self._watch.error is None:
            self._communicator.destroy()


class _Opened:
    """The result that the thread that joins the ranks left behind."""

    result: Any = None
    error: Exception | None = None


def _id_bytes(unique: bytes | tuple[int, ...]) -> bytes:
    """CuPy gives bytes from version 14 on, signed numbers before."""
    return unique if isinstance(unique, bytes) else bytes(v & 255 for v in unique)


def _unique_id(cupy: ArrayModule, raw: bytes) -> bytes | tuple[int, ...]:
    """The inverse of `_id_bytes`, as this CuPy wants it."""
    if int(cupy.__version__.partition(".")[0]) >= 14:
        return raw
    return tuple(v - 256 if v > 127 else v for v in raw)
