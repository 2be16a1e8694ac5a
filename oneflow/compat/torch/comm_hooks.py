"""`torch.distributed.algorithms.ddp_comm_hooks`: functions that exchange the gradients of a bucket.

A hook is called as `hook(state, bucket)` and returns a future of the tensor that takes the place of
the bucket's gradients, which are this rank's own, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oneflow import distributed
from oneflow.compat.torch.futures import Future
from oneflow.core.dtype import DType, bfloat16, float16
from oneflow.distributed.ddp import Bucket
from oneflow.distributed.process_groups import ALL_RANKS, ProcessGroup
from oneflow.ops.cast import cast
from oneflow.tensor.tensor import Tensor

__all__ = [
    "GradBucket",
    "allreduce_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
]

GradBucket = Bucket
Hook = Callable[[Any, Bucket], Future[Any]]


def _there(values: Tensor) -> Future[Any]:
    found: Future[Any] = Future()
    found.set_result(values)
    return found


def _mean(process_group: ProcessGroup | None, values: Tensor) -> Tensor:
    distributed.all_reduce(values, distributed.ReduceOp.AVG, group=process_group)
    return values


def allreduce_hook(process_group: ProcessGroup | None, bucket: Bucket) -> Future[Any]:
    """Return the means over the ranks, as data parallelism makes them without a hook."""
    return _there(_mean(process_group, bucket.buffer()))


def _compressed(process_group: ProcessGroup | None, bucket: Bucket, dtype: DType) -> Future[Any]:
    own = bucket.buffer()
    size = len((ALL_RANKS if process_group is None else process_group).ranks)
    small = cast(own / size, dtype=dtype)
    distributed.all_reduce(small, group=process_group)
    return _there(cast(small, dtype=own.dtype))


def fp16_compress_hook(process_group: ProcessGroup | None, bucket: Bucket) -> Future[Any]:
    """Return the means, exchanged in float16."""
    return _compressed(process_group, bucket, float16)


def bf16_compress_hook(process_group: ProcessGroup | None, bucket: Bucket) -> Future[Any]:
    """Return the means, exchanged in bfloat16."""
    return _compressed(process_group, bucket, bfloat16)


def _around(hook: Hook, dtype: DType) -> Hook:
    def call(state: object, bucket: Bucket) -> Future[Any]:
        full = bucket.buffer().dtype
        bucket.set_buffer(cast(bucket.buffer(), dtype=dtype))
        return hook(state, bucket).then(lambda made: cast(made.value(), dtype=full))

    return call


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """Return a hook that lets another one exchange float16."""
    return _around(hook, float16)


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """Return a hook that lets another one exchange bfloat16."""
    return _around(hook, bfloat16)
