"""Collectives of GPUs through NCCL (CuPy's binding), one GPU per rank. Arrays are CuPy arrays.

Not yet run on a machine with GPUs: until then the eager library moves GPU shards through host
memory. NCCL cannot say that ranks call different things, it hangs: so the ranks first compare their
calls through `guard`, the host collectives of the same ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow.boxing.collectives.base import (
    REDUCTIONS,
    CallInfo,
    Collectives,
    pack,
    unpack,
)
from oneflow.boxing.collectives.exchange import Exchange
from oneflow.boxing.shared import KeyValueStore
from oneflow.core.errors import DTypeError, ShapeError

_TYPES = {
    "int8": "NCCL_INT8", "uint8": "NCCL_UINT8", "int32": "NCCL_INT32", "int64": "NCCL_INT64",
    "float16": "NCCL_FLOAT16", "float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64",
    "bfloat16": "NCCL_BFLOAT16",
}  # fmt: skip
_OPS = {"sum": "NCCL_SUM", "prod": "NCCL_PROD", "max": "NCCL_MAX", "min": "NCCL_MIN"}


class NcclCollectives(Collectives):
    """group_name: never used before in this job; guard: host collectives of the same ranks."""

    def __init__(
        self,
        group_name: str,
        rank: int,
        ranks: Sequence[int],
        kv: KeyValueStore,
        guard: Collectives,
        timeout_s: float = 300.0,
    ) -> None:
        from cupy.cuda import nccl

        super().__init__(rank, ranks, None, timeout_s)
        self._nccl = nccl
        self._guard = guard
        key = f"nccl/{group_name}"
        if self.index == 0:
            kv.put(key, bytes(v & 255 for v in nccl.get_unique_id()))
        unique = _unique_id(kv.get(key, timeout_s))
        self._communicator = nccl.NcclCommunicator(self.size, unique, self.index)

    def all_reduce(self, x: Any, op: str = "sum", out: Any = None) -> Any:
        """As on the host; sums of floats may differ from it in the last bits."""
        import cupy

        source = cupy.ascontiguousarray(x)
        result = cupy.empty_like(source) if out is None else out
        self._agree(self._info(f"all_reduce_{op}", x.dtype, x.shape))
        self._communicator.allReduce(
            source.data.ptr,
            result.data.ptr,
            source.size,
            self._type(x),
            getattr(self._nccl, _OPS[op]),
            _stream(),
        )
        return result

    def reduce_scatter(self, x: Any, op: str = "sum") -> Any:
        """As on the host; NCCL needs equal parts, others go as an exchange."""
        import cupy

        if x.ndim == 0:
            raise ShapeError("reduce_scatter: a 0-d array has no dim to divide between the ranks")
        if x.shape[0] % self.size:
            return self._reduce_scatter_uneven(x, op)
        source = cupy.ascontiguousarray(x)
        out = cupy.empty((x.shape[0] // self.size, *x.shape[1:]), x.dtype)
        self._agree(self._info(f"reduce_scatter_{op}", x.dtype, x.shape))
        self._communicator.reduceScatter(
            source.data.ptr,
            out.data.ptr,
            out.size,
            self._type(x),
            getattr(self._nccl, _OPS[op]),
            _stream(),
        )
        return out

    def all_gather(self, x: Any, counts: Sequence[int] | None = None) -> Any:
        """As on the host."""
        import cupy

        from oneflow.boxing.collectives.exchange import gather_exchange

        source = cupy.ascontiguousarray(x).reshape(-1)
        sizes = (source.size,) * self.size if counts is None else tuple(counts)
        out = cupy.empty(sum(sizes), x.dtype)
        info = self._info("all_gather", x.dtype, sizes)
        if len(set(sizes)) > 1:
            self._exchange(info, source, out, gather_exchange(self.ranks, sizes), np.add)
            return out
        self._agree(info)
        nbytes = source.nbytes
        self._communicator.allGather(
            source.data.ptr, out.data.ptr, nbytes, self._nccl.NCCL_UINT8, _stream()
        )
        return out

    def all_to_all(self, x: Any) -> Any:
        """As on the host."""
        import cupy

        from oneflow.boxing.collectives.exchange import all_to_all_exchange

        if x.ndim == 0 or x.shape[0] != self.size:
            raise ShapeError(f"all_to_all: dim 0 of {list(x.shape)} must be the {self.size} ranks")
        source = cupy.ascontiguousarray(x).reshape(-1)
        out = cupy.empty_like(source)
        exchange = all_to_all_exchange(self.ranks, source.size // self.size)
        self._exchange(self._info("all_to_all", x.dtype, x.shape), source, out, exchange, np.add)
        return out.reshape(x.shape)

    def _reduce_scatter_uneven(self, x: Any, op: str) -> Any:
        import cupy

        from oneflow.boxing.boxes import balanced_part
        from oneflow.boxing.collectives.exchange import scatter_exchange

        start, stop = balanced_part(x.shape[0], self.size, self.index)
        flat = cupy.ascontiguousarray(x).reshape(-1)
        out = cupy.empty((stop - start, *x.shape[1:]), x.dtype)
        exchange = scatter_exchange(self.ranks, flat.size, max(1, flat.size // x.shape[0]))
        info = self._info(f"reduce_scatter_{op}", x.dtype, x.shape)
        self._exchange(info, flat, out.reshape(-1), exchange, REDUCTIONS[op])
        return out

    def _exchange(
        self, info: CallInfo, source: Any, target: Any, exchange: Exchange, reduce: Any
    ) -> None:
        """One group of sends and receives, of exactly the bytes that are read."""
        import cupy

        self._agree(info)
        packed = cupy.empty(exchange.packed_numel(self.rank), target.dtype)
        pack(source, exchange.packed(self.rank), packed)
        received = {
            peer: cupy.empty(exchange.packed_numel(peer), target.dtype)
            for peer in exchange.senders[self.rank]
        }
        self._nccl.groupStart()
        try:
            for peer in self.peers:
                self._send_to(peer, packed, exchange)
            for peer, buffer in received.items():
                self._receive_from(peer, buffer, exchange)
        finally:
            self._nccl.groupEnd()
        unpack(self.rank, source, target, exchange, received.__getitem__, reduce)
        self.received_nbytes += exchange.received_numel(self.rank) * target.dtype.itemsize

    def _send_to(self, peer: int, packed: Any, exchange: Exchange) -> None:
        for read in exchange.reads(peer):
            if read.source_rank == self.rank:
                part = packed[read.offset : read.offset + read.numel]
                self._communicator.send(
                    part.data.ptr,
                    part.nbytes,
                    self._nccl.NCCL_UINT8,
                    self.ranks.index(peer),
                    _stream(),
                )

    def _receive_from(self, peer: int, buffer: Any, exchange: Exchange) -> None:
        for read in exchange.reads(self.rank):
            if read.source_rank == peer:
                part = buffer[read.offset : read.offset + read.numel]
                self._communicator.recv(
                    part.data.ptr,
                    part.nbytes,
                    self._nccl.NCCL_UINT8,
                    self.ranks.index(peer),
                    _stream(),
                )

    def _agree(self, info: CallInfo) -> None:
        said = self._guard.gather_bytes(info.text.encode())
        signatures = self._guard.all_gather(np.array([info.signature], np.int64))
        if (signatures != info.signature).any():
            texts = {r: text.decode() for r, text in zip(self.ranks, said, strict=True)}
            self._raise_desync(texts)

    def _type(self, x: Any) -> int:
        name = _TYPES.get(x.dtype.name)
        if name is None or not hasattr(self._nccl, name):
            raise DTypeError(f"NCCL cannot reduce {x.dtype.name}; cast it first")
        return int(getattr(self._nccl, name))

    def abort(self) -> None:
        """Ends what still waits for a peer that is gone; only `close` may follow."""
        self._communicator.abort()

    def close(self) -> None:
        self._communicator.destroy()


def _unique_id(raw: bytes) -> Any:
    """As this CuPy wants it: bytes from version 14 on, a tuple of signed numbers before."""
    import cupy

    if int(cupy.__version__.partition(".")[0]) >= 14:
        return raw
    return tuple(v - 256 if v > 127 else v for v in raw)


def _stream() -> int:
    import cupy

    return int(cupy.cuda.get_current_stream().ptr)
