"""`torch.vmap`: a function of one sample, made one of many, whose ops run once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, NamedTuple

from oneflow import surfaces
from oneflow.compat.torch.pytree import (
    TreeSpec,
    _broadcast_to_and_flatten,
    tree_flatten,
    tree_unflatten,
)
from oneflow.core.errors import ArgumentError, BatchingError, CallError, ShapeError
from oneflow.tensor.batching.mode import Batching, batching
from oneflow.tensor.batching.values import RANDOMNESS, from_front, with_front
from oneflow.tensor.tensor import Tensor

InDims = int | Sequence[object]
"""The dim of a batch in all arguments, or for each argument a dim, None or a tree of them."""
Dims = int | Sequence[object] | None


class _Given(NamedTuple):
    """The arguments of a call. dims: of each leaf the dim of the samples, or None."""

    leaves: list[Any]
    spec: TreeSpec
    dims: list[int | None]
    size: int


def vmap(
    func: Callable[..., Any],
    in_dims: InDims = 0,
    out_dims: Dims = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function of batches, made of `func`, which is written for one sample.

    The ops that `func` calls run once for all samples. One without a rule for that runs once for
    each, and warns. Python sees no values: `if x > 0`, `x.item()` and functions whose results
    have shapes that depend on values raise an error.

    in_dims: The dim of the samples in each argument, or in each tensor of it; None for
        one that all samples share, as keyword arguments are.
    out_dims: The dim of the samples in the results; None for a result that all share.
    randomness: "different": Each sample draws numbers of its own.  "same": All draw the same.
        "error": Functions that draw raise an error.
    chunk_size: The most samples at once (default: all).

    Raises:
        ArgumentError: If dims and arguments do not fit each other.
        ShapeError: If the sizes of batches differ.
        BatchingError: For a call inside `func` that cannot be made for all samples at once.

    Example:
        >>> import oneflow as flow
        >>> flow.vmap(lambda x, y: x @ y)(flow.ones(3, 2), flow.ones(3, 2)).tolist()
        [2.0, 2.0, 2.0]
    """
    if randomness not in RANDOMNESS:
        raise ArgumentError(
            "Only allowed values for randomness are 'error', 'different', or 'same', got "
            f"{randomness!r}"
        )
    if chunk_size is not None and chunk_size < 1:
        raise ArgumentError(f"vmap: chunk_size must be None or at least 1, got {chunk_size}")

    @wraps(func)
    def apply(*args: object, **kwargs: object) -> Any:
        given = _given(func, in_dims, args)
        if chunk_size is None or chunk_size >= given.size:
            return _run(func, given, out_dims, randomness, kwargs)
        parts = [
            _run(func, part, out_dims, randomness, kwargs) for part in _chunks(given, chunk_size)
        ]
        return _rejoined(parts, out_dims)

    return apply


def _given(func: Callable[..., Any], in_dims: InDims, args: tuple[object, ...]) -> _Given:
    name = f"vmap({getattr(func, '__name__', 'func')}, in_dims={in_dims}, ...)(<inputs>)"
    if not isinstance(in_dims, (int, list, tuple)):
        raise ArgumentError(
            f"{name}: expected `in_dims` to be int or a (potentially nested) tuple matching the "
            f"structure of inputs, got: {type(in_dims).__name__}"
        )
    leaves, spec = tree_flatten(args)
    if not leaves:
        raise ArgumentError(f"{name}: got no inputs")
    wanted = tuple(in_dims) if isinstance(in_dims, list) else in_dims
    dims = _broadcast_to_and_flatten(wanted, spec, _is_dim)
    if dims is None:
        raise ArgumentError(
            f"{name}: in_dims is not compatible with the structure of inputs: {spec}"
        )
    found = [_checked(name, x, d) for x, d in zip(leaves, dims, strict=True)]
    sizes = [int(x.shape[d]) for x, d in zip(leaves, found, strict=True) if d is not None]
    if not sizes:
        raise ArgumentError(f"{name}: Expected at least one Tensor to vmap over; all dims are None")
    if len(set(sizes)) > 1:
        raise ShapeError(
            f"vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
            f"{sizes}"
        )
    return _Given(leaves, spec, found, sizes[0])


def _is_dim(value: object) -> bool:
    return value is None or isinstance(value, int)


def _checked(name: str, x: object, dim: object) -> int | None:
    """The dim of the samples, not negative."""
    if dim is None:
        return None
    if not isinstance(dim, int):
        raise ArgumentError(f"{name}: in_dims must hold integers and None, got {dim!r}")
    if not isinstance(x, Tensor):
        raise ArgumentError(
            f"{name}: Got in_dim={dim} for an input but the input is of type {type(x).__name__}. "
            "We cannot vmap over non-Tensor arguments, please use None as the respective in_dim"
        )
    if not -x.ndim <= dim < x.ndim:
        raise ArgumentError(
            f"{name}: Got in_dim={dim} for some input, but that input is a Tensor of "
            f"dimensionality {x.ndim} so expected in_dim to satisfy -{x.ndim} <= in_dim < {x.ndim}"
        )
    return dim % x.ndim


def _run(
    func: Callable[..., Any],
    given: _Given,
    out_dims: Dims,
    randomness: str,
    kwargs: dict[str, Any],
) -> Any:
    leaves, dims = given.leaves, given.dims
    fronts = [x if d is None else with_front(x, d) for x, d in zip(leaves, dims, strict=True)]
    with batching(given.size, randomness) as mode:
        inputs = [
            x if d is None else mode.enter_samples(x) for x, d in zip(fronts, dims, strict=True)
        ]
        made = func(*tree_unflatten(inputs, given.spec), **kwargs)
        results, spec = tree_flatten(made)
        ends = _ends(out_dims, spec)
        outs = [_result(mode, y, end) for y, end in zip(results, ends, strict=True)]
        written = [
            (x, mode.split_whole(y))
            for x, y, d in zip(fronts, inputs, dims, strict=True)
            if d is not None and mode.whole(y) is not x
        ]
    for x, new in written:  # by an operation in place, which a batch sees, too
        surfaces.find("tensor", "copy_")(x, new)
    placed = [
        y if end is None else from_front(y, end % y.ndim) for y, end in zip(outs, ends, strict=True)
    ]
    return tree_unflatten(placed, spec)


def _ends(out_dims: Dims, spec: TreeSpec) -> list[int | None]:
    wanted: object = tuple(out_dims) if isinstance(out_dims, list) else out_dims
    if isinstance(wanted, tuple) and len(wanted) == 1 and spec.is_leaf():
        (wanted,) = wanted
    found = _broadcast_to_and_flatten(wanted, spec, _is_dim)
    if found is None:
        raise ArgumentError(
            f"vmap: out_dims={out_dims} is not compatible with the structure of the results: {spec}"
        )
    return found


def _result(mode: Batching, y: object, end: int | None) -> Tensor:
    """A result with the samples in front."""
    if not isinstance(y, Tensor):
        raise CallError(
            f"vmap: the function must only return Tensors, got type {type(y).__name__} as a return"
        )
    if end is None:
        if mode.has_own(y):
            raise BatchingError(
                "vmap: out_dims is None for a result of which each sample has its own; name a dim"
            )
        return mode.whole(y)
    if not -y.ndim - 1 <= end <= y.ndim:
        raise ArgumentError(f"vmap: out_dim {end} is no dim of a result {y.meta} with samples")
    return mode.split_whole(y)


def _chunks(given: _Given, count: int) -> Iterator[_Given]:
    narrow = surfaces.find("tensor", "narrow")
    for start in range(0, given.size, count):
        size = min(count, given.size - start)
        leaves = [
            x if d is None else narrow(x, d, start, size)
            for x, d in zip(given.leaves, given.dims, strict=True)
        ]
        yield given._replace(leaves=leaves, size=size)


def _rejoined(parts: Sequence[Any], out_dims: Dims) -> Any:
    flat = [tree_flatten(part) for part in parts]
    spec = flat[0][1]
    join = surfaces.find("flow", "cat")
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    joined = [
        column[0] if end is None else join(list(column), end)
        for column, end in zip(columns, _ends(out_dims, spec), strict=True)
    ]
    return tree_unflatten(joined, spec)
