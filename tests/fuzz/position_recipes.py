"""Recipes of functions that take positions, or parts of tensors."""

from __future__ import annotations

import torch

from .drawing import Draft, name_of
from .operands import WIDE, fresh, of
from .recipes import nothing, recipe


def scattered(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    dim = d.rng.randint(-value.ndim, value.ndim - 1)
    shape = tuple(map(int, value.shape))
    size = shape[dim]
    lines = int(torch.Size(shape).numel()) // size
    numbers = [i for _ in range(lines) for i in d.rng.sample(range(size), size)]
    ids = torch.tensor(numbers).reshape(lines, size)
    index = ids.reshape(*shape[: dim % value.ndim], *shape[dim % value.ndim + 1 :], size).movedim(
        -1, dim
    )
    name = d.leaf(shape, "int64", numbers=tuple(index.reshape(-1).tolist()))
    return [str(dim), name, d.leaf(shape, name_of(value)) if d.chance(0.7) else d.number(x)]


def put(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    count = d.pick((1, 2, 3))
    ids = [d.positions((count,), int(n), negative=True) for n in value.shape[: d.pick((1, 2))]]
    rest = tuple(map(int, value.shape[len(ids) :]))
    source = d.leaf((count, *rest), name_of(value))
    return [f"({', '.join(ids)},)", source, "accumulate=True"]


def slices(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    shape, dim = list(map(int, value.shape)), d.rng.randint(0, value.ndim - 1)
    start = d.rng.randint(0, shape[dim])
    shape[dim] -= start
    return [d.leaf(tuple(shape), name_of(value)), str(dim), str(start)]


def on_diagonal(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    shape = tuple(map(int, torch.empty(value.shape).diagonal().shape))
    return [d.leaf(shape, name_of(value))]


def parts(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    dim = d.rng.randint(-value.ndim, value.ndim - 1)
    first = d.rng.randint(0, int(value.shape[dim]))
    return [str([first, int(value.shape[dim]) - first]), str(dim)]


def counts(d: Draft) -> str:
    size = d.pick((1, 3, 5))
    return d.leaf((size,), "int64", numbers=tuple(d.rng.randint(0, 4) for _ in range(size)))


def ordered(d: Draft) -> str:
    numbers = tuple(sorted(d.numbers("float32", (5,), False)))
    return d.leaf((5,), "float32", numbers=numbers, grad=False)


def sought(d: Draft, x: str) -> list[str]:
    side = [d.pick(("right=True", "side='left'", "side='right'"))] if d.chance(0.6) else []
    return [d.leaf(d.shape(), "float32", grad=False), *side, *d.optional("out_int32=True")]


def shape_of_fill(d: Draft, x: str) -> list[str]:
    return [str(d.shape()), d.number(x)]


def affine_quantization(d: Draft, x: str) -> list[str]:
    return ["0.25", str(d.pick((0, 3))), "0", str(d.pick((15, 255)))]


recipe("scatter", scattered, "moves", own=fresh((2, 3), (4,), (2, 2, 3), (3, 1)))
recipe("index_put", put, "algebra", own=fresh((2, 3), (4, 2), (2, 2, 3)))
recipe("slice_scatter", slices, "moves", own=fresh((2, 3), (4,), (2, 2, 3)))
recipe("diagonal_scatter", on_diagonal, "moves", own=fresh((2, 3), (4, 2), (2, 2, 3)))
recipe("split_with_sizes split_with_sizes_copy", parts, "moves", own=fresh((2, 3), (4,)))
recipe("dsplit", of("1", "2"), "moves", own=fresh((1, 3, 4)))
recipe("diagonal_copy t_copy", nothing, "moves", own=fresh((2, 3), (3, 3)))
recipe("squeeze_copy", of("0", "-1", ""), "moves", own=fresh((1, 3), (2, 1)))
recipe("unfold_copy", of("-1, 2, 1", "0, 1, 1"), "moves", own=fresh((2, 3), (3,)))
recipe("unbind_copy", of("", "-1"), "moves", own=fresh((2, 3), (3,)))
recipe("bincount", of("", "minlength=3", "minlength=6"), "jumps", own=counts)
recipe("searchsorted", sought, "jumps", own=ordered)
recipe("histc", of("bins=4", "3, -2, 2", "5"), "jumps", own=fresh((4,), (2, 3), dtypes=WIDE))
recipe("combinations", of("", "1", "3", "with_replacement=True"), "moves", own=fresh((3,), (4,)))
recipe(
    "cartesian_prod",
    lambda d, x: [x, d.leaf((2,), name_of(d.values[x]))],
    "moves",
    own=fresh((3,), (1,)),
    listed=True,
)
recipe(
    "gradient", of("", "spacing=0.5", "edge_order=2, dim=-1"), own=fresh((3,), (3, 4), dtypes=WIDE)
)
recipe(
    "cumulative_trapezoid",
    of("", "dx=0.5", "dim=0"),
    "algebra",
    own=fresh((3,), (3, 4), dtypes=WIDE),
)
recipe("nonzero_static", of("size=3", "size=3, fill_value=7"), "jumps", own=fresh((3,), (2, 3)))
recipe("new_full", shape_of_fill, "moves")
recipe("frexp", nothing, "jumps", own=fresh((3,), (2, 3), dtypes=WIDE))
recipe(
    "fake_quantize_per_tensor_affine",
    affine_quantization,
    own=fresh((3,), (2, 3), dtypes=("float32",)),
)
