"""Program of the ranks of test_comm.py: `comm_program SCENE ... [far]`; exits 0 if all is right.

far: the ranks believe to be on different hosts, so that their data go over TCP.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

if sys.argv[-1] == "far":
    os.environ["ONEFLOW_HOST_IDENTITY"] = f"host{os.environ['RANK']}"

import ml_dtypes
import numpy as np

import oneflow as flow
from oneflow import comm
from oneflow.core.errors import (
    DesyncError,
    DeviceError,
    DTypeError,
    GraphError,
    PlacementError,
    ShapeError,
)
from tests.support.launching import play
from tests.support.refusing import refuses

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
LAST = SIZE - 1
SHAPES = [(), (1,), (5,), (2, 3), (0,), (3, 0, 2), (70, 301)]
DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
KINDS = [*itertools.product(SHAPES, ["float32", "int64"]), *(((4, 3), d) for d in DTYPES)]
NUMPY = {"bfloat16": ml_dtypes.bfloat16}


def numpy_dtype(name: str) -> Any:
    return np.dtype(NUMPY.get(name, name))


def values(rank: int, shape: tuple[int, ...], dtype: str, salt: int = 0) -> np.ndarray[Any, Any]:
    """Small whole numbers, so that every sum and product is exact in every dtype."""
    rng = np.random.default_rng([rank, salt, *shape])
    low, high = (0, 3) if dtype in ("bool", "uint8") else (-2, 3)
    return rng.integers(low, high, shape).astype(numpy_dtype(dtype))


def tensor(array: np.ndarray[Any, Any], dtype: str) -> flow.Tensor:
    """A tensor that is not contiguous where it has two dims or more."""
    if array.ndim < 2:
        return flow.from_numpy(array.copy())
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    made = flow.from_numpy(wide)[..., ::2]
    assert str(made.dtype) == f"oneflow.{dtype}"
    return made


def empty(shape: tuple[int, ...], dtype: str) -> flow.Tensor:
    return tensor(np.full(shape, 1).astype(numpy_dtype(dtype)), dtype)


def same(got: flow.Tensor, expected: np.ndarray[Any, Any], dtype: str) -> None:
    assert str(got.dtype) == f"oneflow.{dtype}", got.dtype
    found = np.asarray(got.detach()._array)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


def total(parts: list[np.ndarray[Any, Any]], op: str) -> np.ndarray[Any, Any]:
    """The reference: in float64, or logical for bool."""
    if parts[0].dtype == bool:
        return (np.any if op in ("sum", "max") else np.all)(parts, axis=0)
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    result = parts[0].astype(np.float64)
    for part in parts[1:]:
        result = ufunc(result, part.astype(np.float64))
    if parts[0].dtype.kind in "iu":
        return result.astype(np.int64).astype(parts[0].dtype)
    return result.astype(parts[0].dtype)


def reductions() -> None:
    """all_reduce, reduce and both forms of reduce_scatter."""
    for (shape, dtype), op in itertools.product(KINDS, ["sum", "prod", "max", "min"]):
        parts = [values(r, shape, dtype) for r in range(SIZE)]
        x = tensor(parts[RANK], dtype)
        comm.all_reduce(x, op)
        same(x, total(parts, op), dtype)
        x = tensor(parts[RANK], dtype)
        comm.reduce(x, LAST, op)
        same(x, total(parts, op) if RANK == LAST else parts[RANK], dtype)
        lists = [[values(r, shape, dtype, i) for i in range(SIZE)] for r in range(SIZE)]
        mine = total([each[RANK] for each in lists], op)
        out = empty(shape, dtype)
        comm.reduce_scatter(out, [tensor(a, dtype) for a in lists[RANK]], op)
        same(out, mine, dtype)
        stacked = np.stack(lists[RANK])
        out = empty(shape, dtype)
        comm.reduce_scatter_tensor(out, tensor(stacked, dtype), op)
        same(out, mine, dtype)
        if shape:
            joined = stacked.reshape(SIZE * shape[0], *shape[1:])
            out = empty(shape, dtype)
            comm.reduce_scatter_tensor(out, tensor(joined, dtype), op)
            same(out, mine, dtype)
    x = flow.ones(3)
    version = x._version[0]
    flow.distributed.all_reduce(x, op=flow.distributed.ReduceOp.MAX)
    assert x._version[0] > version


def moves() -> None:
    """Everything that moves values and computes nothing."""
    for shape, dtype in KINDS:
        parts = [values(r, shape, dtype) for r in range(SIZE)]
        mine = tensor(parts[RANK], dtype)
        outs = [empty(shape, dtype) for _ in range(SIZE)]
        comm.all_gather(outs, mine)
        for out, part in zip(outs, parts, strict=True):
            same(out, part, dtype)
        stacked = np.stack(parts)
        forms = [stacked.shape] + ([(SIZE * shape[0], *shape[1:])] if shape else [])
        for form in forms:
            out = empty(form, dtype)
            comm.all_gather_into_tensor(out, mine)
            same(out, stacked.reshape(form), dtype)
        for root in (0, LAST):
            x = tensor(parts[RANK], dtype)
            comm.broadcast(x, root)
            same(x, parts[root], dtype)
            out = empty(shape, dtype)
            comm.scatter(out, [tensor(p, dtype) for p in parts] if root == RANK else None, root)
            same(out, parts[RANK], dtype)
            outs = [empty(shape, dtype) for _ in range(SIZE)]
            comm.gather(mine, outs if root == RANK else None, root)
            if root == RANK:
                for out, part in zip(outs, parts, strict=True):
                    same(out, part, dtype)
        given = [[values(r, shape, dtype, i) for i in range(SIZE)] for r in range(SIZE)]
        outs = [empty(shape, dtype) for _ in range(SIZE)]
        comm.all_to_all(outs, [tensor(a, dtype) for a in given[RANK]])
        for r, out in enumerate(outs):
            same(out, given[r][RANK], dtype)
        same(mine, parts[RANK], dtype)
    uneven_rows()
    comm.barrier()


def uneven_rows() -> None:
    """all_to_all_single: rank r has r + i rows for rank i, but none for the last."""
    sizes = np.add.outer(np.arange(SIZE), np.arange(SIZE))
    sizes[:, LAST] = 0
    for shape, dtype in (((3,), "float32"), ((), "int64"), ((2, 2), "bfloat16")):
        given = [values(r, (int(sizes[r].sum()), *shape), dtype) for r in range(SIZE)]
        ends = sizes.cumsum(1)[:, RANK]
        came = [x[end - n : end] for x, end, n in zip(given, ends, sizes[:, RANK], strict=True)]
        out = empty((int(sizes[:, RANK].sum()), *shape), dtype)
        told = sizes[:, RANK].tolist(), sizes[RANK].tolist()
        flow.distributed.all_to_all_single(out, tensor(given[RANK], dtype), *told)
        same(out, np.concatenate(came), dtype)
    even, out = flow.arange(2 * SIZE) + 100 * RANK, flow.zeros(2 * SIZE, dtype=flow.int64)
    comm.all_to_all_single(out, even)
    wanted = (2 * RANK + np.arange(2)) + 100 * np.arange(SIZE)[:, None]
    same(out, wanted.reshape(-1), "int64")


def pairs() -> None:
    """send and recv between two ranks, while the others do something else."""
    kinds = [(values(0, shape, dtype), dtype) for shape, dtype in KINDS]
    if RANK == 0:
        for array, dtype in kinds:
            comm.send(tensor(array, dtype), LAST)
            comm.send(tensor(array, dtype), LAST, send_meta=False)
        comm.send(flow.arange(6), LAST)
        comm.send(flow.arange(6), LAST)
        flow.distributed.send(flow.arange(4), LAST)
        same(comm.recv(LAST), np.float32([[1.5]]), "float32")
    elif RANK == LAST:
        for array, dtype in kinds:
            same(comm.recv(0), array, dtype)
            kind = getattr(flow, dtype)
            same(comm.recv(0, array.shape, kind, flow.device("cpu")), array, dtype)
        out = flow.zeros(6, dtype=flow.int64)
        assert comm.recv(0, out=out) is out
        same(out, np.arange(6), "int64")
        refuses(
            ShapeError,
            r"rank 0 sent|out is int64\[5\]",
            lambda: comm.recv(0, out=flow.zeros(5, dtype=flow.int64)),
        )
        out = flow.zeros(4, dtype=flow.int64)
        assert flow.distributed.recv(out, 0) == 0
        same(out, np.arange(4), "int64")
        comm.send(flow.tensor([[1.5]]), 0)
    comm.barrier()


def objects() -> None:
    """Python values, of any size."""
    mine = {"rank": RANK, "text": "ü" * RANK * 300, "list": [None, True, 1.5, {"deep": [RANK]}]}
    theirs = [{**mine, "rank": r, "text": "ü" * r * 300} for r in range(SIZE)]
    for r in range(SIZE):
        theirs[r]["list"] = [None, True, 1.5, {"deep": [r]}]
    assert comm.all_gather_object(mine) == theirs
    assert comm.broadcast_object(mine, LAST) == theirs[LAST]
    assert comm.gather_object(mine, LAST) == (theirs if RANK == LAST else None)
    assert comm.scatter_object(theirs if RANK == 0 else None) == mine
    dist = flow.distributed
    listed: list[Any] = [None] * SIZE
    dist.all_gather_object(listed, mine)
    assert listed == theirs
    listed = [RANK, mine] if RANK == LAST else [None, None]
    dist.broadcast_object_list(listed, LAST)
    assert listed == [LAST, theirs[LAST]]
    listed = [None] * SIZE
    dist.gather_object(mine, listed if RANK == 0 else None)
    assert listed == (theirs if RANK == 0 else [None] * SIZE)
    listed = [None]
    dist.scatter_object_list(listed, theirs if RANK == 0 else None)
    assert listed == [mine]
    every_kind()
    between_two()
    untransportable()


def every_kind() -> None:
    """Values that JSON cannot say, as the types they were."""
    for value in (
        (1, 2.0, [True, None]),
        b"\0\xff" * 500,
        {1: "a", 2.5: b"b", False: (), None: {(1, "x"): 2**70}},
        [float("inf"), -0.0, "\ud800", -(2**63), 2**64],
    ):
        assert repr(comm.broadcast_object(value if RANK == LAST else None, LAST)) == repr(value)
        assert repr(comm.all_gather_object((RANK, value))[LAST]) == repr((LAST, value))
    array = values(RANK, (3, 4), "float32")
    for r, found in enumerate(comm.all_gather_object([array, flow.from_numpy(array)])):
        np.testing.assert_array_equal(found[0], values(r, (3, 4), "float32"))
        same(found[1], found[0], "float32")


def between_two() -> None:
    """send_object and recv_object, of objects that fit into the first exchange and of larger
    ones.
    """
    open_from_two_threads()
    said = [None, {"a": (1, b"x")}, "y" * 245, "y" * 246, "y" * 247, "y" * 300_000]
    if SIZE > 1 and RANK == 0:
        for value in said:
            comm.send_object(value, LAST)
        assert comm.recv_object(LAST) == 2
        wrong = r"send_object\(rank 0 to rank \d\): rank 0 failed: the value\[0\] is of type set"
        refuses(DTypeError, wrong, lambda: comm.send_object([set()], LAST))
        comm.send_object("after it", LAST)
    elif SIZE > 1 and RANK == LAST:
        for value in said:
            assert comm.recv_object(0) == value
        comm.send_object(2, 0)
        wrong = r"send_object\(rank 0 to rank \d\): rank 0 failed: the value\[0\] is of type set"
        refuses(DTypeError, wrong, lambda: comm.recv_object(0))
        assert comm.recv_object(0) == "after it"
    refuses(PlacementError, "cannot exchange with itself", lambda: comm.send_object(1, RANK))
    refuses(PlacementError, "is not in a world", lambda: comm.recv_object(SIZE))


def open_from_two_threads() -> None:
    """The first call of two ranks, by two threads of one of them."""
    if SIZE > 1 and RANK == 0:
        senders = [threading.Thread(target=comm.send_object, args=("x", LAST)) for _ in range(2)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    elif SIZE > 1 and RANK == LAST:
        assert [comm.recv_object(0), comm.recv_object(0)] == ["x", "x"]


def untransportable() -> None:
    """One rank's value cannot travel: an error on all, and the next call means the next value."""
    everyone, bad = range(SIZE), [0, {"a": print}]
    for who, call in [
        ("all_gather_object", lambda v: comm.all_gather_object(v)),
        ("broadcast_object", lambda v: comm.broadcast_object(v, LAST)),
        ("broadcast_object_list", lambda v: comm.broadcast_object_list([v], LAST)),
        ("gather_object", lambda v: comm.gather_object(v, 0)),
        ("scatter_object", lambda v: comm.scatter_object([1] * LAST + [v], LAST)),
    ]:
        text = rf"{who}.*: rank {LAST} failed: the value.*\['a'\] is of type builtin"
        refuses(DTypeError, text, lambda call=call: call(bad if RANK == LAST else 1))
        refuses(
            TypeError, "only None, booleans", lambda call=call: call(bad if RANK == LAST else 1)
        )
        assert comm.all_gather_object(RANK) == list(everyone)
    refuses(
        ShapeError,
        rf"rank {LAST} failed: scatter_object: the list needs one entry per rank",
        lambda: comm.scatter_object([1] * (SIZE + 1), LAST),
    )
    also = r" \(so did rank 1.*\)" if SIZE > 1 else ""
    refuses(DTypeError, f"rank 0 failed{also}: the value", lambda: comm.all_gather_object({1, 2}))
    refuses(DTypeError, f"rank 0 failed{also}: the value", lambda: comm.gather_object({1, 2}))
    assert comm.scatter_object(list(everyone)) == RANK


def mistakes() -> None:
    """Wrong arguments raise on the rank that gives them, before anything is sent."""
    one, short = flow.ones(3), [flow.ones(3)] * (SIZE - 1)
    lists = [flow.ones(3) for _ in range(SIZE)]
    whole = flow.ones(4, placement=flow.placement("cpu", [RANK]), sbp=flow.sbp.broadcast)
    far = flow.ones(3)
    far._device = flow.device("cuda", RANK + 1)

    class Traced(flow.nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            comm.all_reduce(x)
            return x

    calls: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (
            ShapeError,
            rf"one entry per rank \({SIZE}\), got {SIZE - 1}",
            lambda: comm.all_gather(short, one),
        ),
        (ShapeError, "got NoneType", lambda: comm.gather(one, None, RANK)),
        (ShapeError, "got NoneType", lambda: comm.scatter(one, None, RANK)),
        (
            ShapeError,
            r"tensor_list\[0\] is float32\[3\], but should be float32\[2\]",
            lambda: comm.all_gather(lists, flow.ones(2)),
        ),
        (
            DTypeError,
            r"tensor_list\[0\] is float32\[3\], but should be int64\[3\]",
            lambda: comm.all_gather(lists, flow.arange(3)),
        ),
        (
            ShapeError,
            r"input_tensor_list\[\d\] is .* one shape, because sizes are not exchanged: use",
            lambda: comm.all_to_all(lists, [*lists[1:], flow.ones(2)]),
        ),
        (DTypeError, "a tensor is needed, got NoneType", lambda: comm.all_to_all(lists, [])),
        (
            ShapeError,
            "do not divide 3 rows",
            lambda: comm.all_to_all_single(one, one, None, [4] * SIZE),
        ),
        (
            ShapeError,
            "must have rows of one kind",
            lambda: comm.all_to_all_single(flow.ones(3, 2), one),
        ),
        (
            ShapeError,
            "parts float32\\[3\\] of",
            lambda: comm.all_gather_into_tensor(flow.ones(4), one),
        ),
        (
            ShapeError,
            "parts float32\\[3\\] of",
            lambda: comm.reduce_scatter_tensor(one, flow.ones(4)),
        ),
        (
            DTypeError,
            "a rank's part is",
            lambda: comm.reduce_scatter_tensor(one, flow.arange(3 * SIZE)),
        ),
        (
            PlacementError,
            f"rank {SIZE} is not in a world of {SIZE}",
            lambda: comm.broadcast(one, SIZE),
        ),
        (PlacementError, "rank -1 is not", lambda: comm.reduce(one, -1)),
        (PlacementError, "cannot exchange with itself", lambda: comm.send(one, RANK)),
        (PlacementError, "is not in a world", lambda: comm.recv(SIZE)),
        (PlacementError, "takes local tensors; use to_global", lambda: comm.all_reduce(whole)),
        (PlacementError, "takes local tensors", lambda: comm.all_gather([whole] * SIZE, one)),
        (DeviceError, f"is on cuda:{RANK + 1}, but this rank's", lambda: comm.all_reduce(far)),
        (DTypeError, "got ndarray; see flow.tensor", lambda: comm.all_reduce(np.ones(3))),
        (DTypeError, "op is one of", lambda: comm.all_reduce(one, "mean")),
        (
            DTypeError,
            "complex64 numbers have no max",
            lambda: comm.all_reduce(flow.ones(2, dtype=flow.complex64), "max"),
        ),
        (GraphError, "under construction", lambda: Traced()(flow.ones(3))),
        (
            PlacementError,
            "group is what new_group",
            lambda: flow.distributed.all_reduce(one, group="g"),
        ),
    ]
    for kind, text, call in calls:
        refuses(kind, text, call)
    comm.barrier()  # all ranks still make the same calls


def unequal() -> None:
    """Mistakes that only the comparison of the ranks can find: a DesyncError on all, with both
    lines.
    """
    first = RANK == 0
    for text, call in [
        (
            r"all_reduce\(sum\) float32\[3\] at .*all_reduce\(sum\) float32\[4\] at",
            lambda: comm.all_reduce(flow.ones(3 if first else 4)),
        ),
        (
            r"float32\[3\] at .*float64\[3\] at",
            lambda: comm.all_reduce(flow.ones(3, dtype=flow.float32 if first else flow.float64)),
        ),
        (
            r"all_reduce\(sum\).*all_reduce\(max\)",
            lambda: comm.all_reduce(flow.ones(3), "sum" if first else "max"),
        ),
        (
            r"broadcast\(from rank 0\).*broadcast\(from rank 1\)",
            lambda: comm.broadcast(flow.ones(3), 0 if first else 1),
        ),
        (
            r"all_gather float32\[2, 3\].*all_gather float32\[3, 2\]",
            lambda: gathered(flow.ones(2, 3) if first else flow.ones(3, 2)),
        ),
        (
            r"reduce\(sum, to rank 0\).*reduce\(sum, to rank 1\)",
            lambda: comm.reduce(flow.ones(3), 0 if first else 1),
        ),
        (
            r"rank 0: barrier at .*rank 1: all_reduce",
            lambda: comm.barrier() if first else comm.all_reduce(flow.ones(3)),
        ),
        (
            r"of 2 entries.*of 3 entries",
            lambda: comm.broadcast_object_list([1, 2] if first else [1, 2, 3]),
        ),
        (
            r"printing float32\[2, 2\] B@cpu\[0, 1.*printing float32\[3, 2\] B@cpu\[0, 1",
            lambda: repr(whole(2 if first else 3)),
        ),
    ]:
        refuses(DesyncError, text, call)
        refuses(DesyncError, "Maybe executing different code in different ranks", call)
    if RANK < 2 and SIZE > 1:
        refuses(
            DesyncError,
            r"send\(rank 0 to rank 1\).*send\(rank 1 to rank 0\)",
            lambda: comm.send(flow.ones(3), 1 - RANK),
        )
        refuses(
            DesyncError,
            r"of shape and dtype.*float32\[3\] at",
            lambda: (
                comm.send(flow.ones(3), 1) if first else comm.recv(0, (3,), flow.float32, "cpu")
            ),
        )
    x = flow.ones(3)
    comm.all_reduce(x)
    same(x, np.full(3, SIZE), "float32")


def whole(rows: int) -> flow.Tensor:
    return flow.ones(rows, 2, placement=flow.placement.all("cpu"), sbp=flow.sbp.broadcast)


def gathered(x: flow.Tensor) -> None:
    comm.all_gather([flow.zeros(*x.shape) for _ in range(SIZE)], x)


if __name__ == "__main__":
    play([globals()[name] for name in sys.argv[1:] if name != "far"])
