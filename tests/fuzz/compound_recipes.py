"""Recipes of functions of matrices, spectra, complex numbers and whole layers.

Their first operand is often a leaf of its own: a matrix that can be inverted, a positive definite
one, probabilities, positions. Results that are complex are shown as pairs.
"""

from __future__ import annotations

import torch

from .drawing import Draft, name_of
from .recipes import Arguments, Operand, like_itself, nothing, recipe

WIDE = ("float32", "float32", "float64")
LAYERS = ("float32", "float32", "float64", "float16", "bfloat16")
PAIRS = "m.view_as_real(({}).resolve_conj())"


# -- operands


def matrix(
    d: Draft, rows: int | None = None, columns: int | None = None, *, batched: bool = True
) -> str:
    """A well-conditioned matrix, or a batch of them: large on its diagonal."""
    rows = rows or d.pick((1, 2, 2, 3, 4))
    columns = columns or rows
    shape = (*(d.pick(((), (), (2,), (1, 2))) if batched else ()), rows, columns)
    numbers = [
        d.pick((1, 1, -1)) * (4 + i + d.rng.randint(0, 3) / 4)
        if i == j
        else d.rng.randint(-4, 4) / 4
        for _ in range(int(torch.Size(shape[:-2]).numel()))
        for i in range(rows)
        for j in range(columns)
    ]
    return d.leaf(shape, d.pick(WIDE), numbers=tuple(numbers))


def tall(d: Draft) -> str:
    rows = d.pick((2, 3, 4))
    return matrix(d, rows, d.rng.randint(1, rows))


def oblong(d: Draft) -> str:
    return matrix(d, d.pick((1, 2, 3)), d.pick((1, 2, 3)))


def symmetric(d: Draft) -> str:
    x = matrix(d)
    return f"({x} + {x}.mT)"


def positive(d: Draft) -> str:
    """Symmetric, all eigenvalues above 1."""
    x = matrix(d)
    return f"({x} @ {x}.mT)"


def triangle(d: Draft) -> str:
    return f"{matrix(d)}.tril()"


def fresh(*shapes: tuple[int, ...], dtypes: tuple[str, ...] = LAYERS) -> Operand:
    def operand(d: Draft) -> str:
        return d.leaf(d.pick(shapes), d.pick(dtypes), special=False)

    return operand


def probabilities(d: Draft) -> str:
    return f"{d.leaf(d.shape(), d.pick(WIDE), special=False)}.sigmoid()"


def complex_numbers(d: Draft, shape: tuple[int, ...] | None = None) -> str:
    x = d.leaf(d.shape() if shape is None else shape, d.pick(WIDE), special=False)
    y = d.leaf(tuple(d.values[x].shape), name_of(d.values[x]), special=False)
    return f"m.complex({x}, {y})"


def real_or_complex(d: Draft) -> str:
    shape = d.pick(((4,), (5,), (2, 3), (3, 4), (2, 3, 4), (1,)))
    return complex_numbers(d, shape) if d.chance(0.4) else fresh(shape, dtypes=WIDE)(d)


# -- arguments


def right_side(d: Draft, x: str) -> list[str]:
    return _side(d, x, d.values[x].shape[:-2] if d.chance(0.7) else ())


def whole_side(d: Draft, x: str) -> list[str]:
    return _side(d, x, d.values[x].shape[:-2])


def _side(d: Draft, x: str, batch: tuple[int, ...]) -> list[str]:
    rows = int(d.values[x].shape[-2])
    return [d.leaf((*batch, rows, d.pick((1, 2, 3))), name_of(d.values[x]), special=False)]


def triangular_side(d: Draft, x: str) -> list[str]:
    return [*right_side(d, x), "upper=False", *d.optional("unitriangular=True")]


def of(*choices: str) -> Arguments:
    """One of the texts; the empty one is none."""
    return lambda d, x: [text for text in [d.pick(choices)] if text]


def spectrum(d: Draft, x: str) -> list[str]:
    """n, dim, norm of a transform in one dim."""
    found = [f"n={d.pick((2, 3, 4, 5))}"] if d.chance(0.3) else []
    found += (
        [f"dim={d.rng.randint(-d.values[x].ndim, d.values[x].ndim - 1)}"] if d.chance(0.5) else []
    )
    return [*found, *(["norm='ortho'"] if d.chance(0.25) else [])]


def norm_of_spectrum(d: Draft, x: str) -> list[str]:
    return [f"norm='{d.pick(('ortho', 'forward', 'backward'))}'"] if d.chance(0.4) else []


def pool(d: Draft, x: str) -> list[str]:
    size = d.pick((1, 2, 2, 3))
    found = [str(size), *d.optional(f"stride={d.pick((1, 2))}")]
    found += [f"padding={size // 2}"] if d.chance(0.3) else []
    return [*found, *(["ceil_mode=True"] if d.chance(0.3) else [])]


def average(d: Draft, x: str) -> list[str]:
    return [*pool(d, x), *(["count_include_pad=False"] if d.chance(0.3) else [])]


def dilated(d: Draft, x: str) -> list[str]:
    return [*pool(d, x), *(["dilation=2"] if d.chance(0.2) else [])]


def power_pool(d: Draft, x: str) -> list[str]:
    return [d.pick(("2.0", "1.0")), str(d.pick((1, 2))), *(["stride=1"] if d.chance(0.3) else [])]


def filters(count: int, is_transposed: bool = False) -> Arguments:
    def arguments(d: Draft, x: str) -> list[str]:
        value = d.values[x]
        channels = int(value.shape[-count - 1])
        groups = 2 if channels % 2 == 0 and d.chance(0.4) else 1
        out = d.pick((1, 2)) * groups
        sizes = tuple(d.pick((1, 2, 3)) for _ in range(count))
        pair = (channels, out // groups) if is_transposed else (out, channels // groups)
        dtype = name_of(value)
        found = [d.leaf((*pair, *sizes), dtype, special=False)]
        found += d.optional(f"bias={d.leaf((out,), dtype, special=False)}")
        stride = d.pick((1, 1, 2))
        found += [f"stride={stride}"] if stride > 1 else []
        if d.chance(0.15) and not is_transposed and stride == 1:
            found.append("padding='same'")
        elif d.chance(0.4):
            found.append(f"padding={d.pick((1, 2))}")
        found += [f"dilation={d.pick((1, 2))}"] if d.chance(0.25) else []
        if is_transposed and stride > 1 and d.chance(0.4):
            found.append("output_padding=1")
        return [*found, *([f"groups={groups}"] if groups > 1 else [])]

    return arguments


def attention(d: Draft, x: str) -> list[str]:
    """key, value and the rest of scaled_dot_product_attention."""
    shape = tuple(map(int, d.values[x].shape))
    keys = d.pick((1, 2, 3))
    dtype = name_of(d.values[x])
    key = d.leaf((*shape[:-2], keys, shape[-1]), dtype, special=False)
    value = d.leaf((*shape[:-2], keys, d.pick((1, 2, 3))), dtype, special=False)
    found = [key, value]
    if d.chance(0.3):
        kind = d.pick((dtype, "bool"))
        numbers = (True,) * (shape[-2] * keys) if kind == "bool" else None
        mask = d.leaf((shape[-2], keys), kind, numbers=numbers, special=False, grad=False)
        found.append(f"attn_mask={mask}")
    elif d.chance(0.3):
        found.append("is_causal=True")
    return [*found, *(["scale=0.5"] if d.chance(0.2) else [])]


def channel(d: Draft, x: str, *, grad: bool | None = None, dim: int = 1) -> str:
    return d.leaf((int(d.values[x].shape[dim]),), name_of(d.values[x]), special=False, grad=grad)


def batch_statistics(d: Draft, x: str) -> list[str]:
    count = int(d.values[x].shape[1])
    dtype = name_of(d.values[x])
    mean = channel(d, x, grad=False)
    variances = tuple(d.pick((0.5, 1.0, 2.0)) for _ in range(count))
    var = d.leaf((count,), dtype, numbers=variances, grad=False)
    affine = [channel(d, x), channel(d, x)] if d.chance(0.5) else ["None", "None"]
    return [mean, var, *affine, f"training={d.flag()}", *d.optional("momentum=0.25")]


def instance(d: Draft, x: str) -> list[str]:
    return [f"weight={channel(d, x)}", f"bias={channel(d, x)}"] if d.chance(0.5) else []


def group(d: Draft, x: str) -> list[str]:
    count = int(d.values[x].shape[1])
    divisors = [k for k in range(1, count + 1) if count % k == 0]
    return [str(d.pick(divisors)), *instance(d, x)]


def layer(d: Draft, x: str) -> list[str]:
    shape = tuple(map(int, d.values[x].shape[-d.pick((1, 2)) :]))
    dtype = name_of(d.values[x])
    found = [str(shape), *d.optional(f"weight={d.leaf(shape, dtype, special=False)}")]
    return [*found, *d.optional(f"bias={d.leaf(shape, dtype, special=False)}")]


def bag(d: Draft, x: str) -> list[str]:
    """ids, table and the rest of embedding_bag; x is the table."""
    rows = int(d.values[x].shape[0])
    mode = d.pick(("sum", "mean", "max"))
    found = [d.positions((d.pick((2, 3)), 2), rows), x, f"mode='{mode}'"]
    if d.chance(0.4):
        offsets = d.leaf((2,), "int64", numbers=(0, d.pick((0, 1, 3))))
        found = [d.positions((4,), rows), x, offsets, f"mode='{mode}'"]
    return [*found, *(["padding_idx=0"] if d.chance(0.3) else [])]


def table(d: Draft, x: str) -> list[str]:
    rows = int(d.values[x].shape[0])
    return [d.positions(d.shape()[:2], rows), x, *d.optional("padding_idx=-1")]


def resized(d: Draft, x: str) -> list[str]:
    count = d.values[x].ndim - 2
    smooth = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}[count]
    mode = d.pick((*smooth, *smooth, "nearest", "nearest-exact", "area"))
    size = tuple(d.pick((1, 2, 3, 5)) for _ in range(count))
    found = [f"size={size}" if d.chance(0.6) else f"scale_factor={d.pick((0.5, 1.5, 2.0))}"]
    return [
        *found,
        f"mode='{mode}'",
        *(["align_corners=True"] if "linear" in mode or "cubic" in mode else [])[: d.pick((0, 1))],
    ]


def sampled(d: Draft, x: str) -> list[str]:
    """grid, mode, padding_mode, align_corners."""
    count = d.values[x].ndim - 2
    shape = (int(d.values[x].shape[0]), *(d.pick((1, 2, 3)) for _ in range(count)), count)
    numbers = tuple(
        d.rng.randint(-140, 140) / 128 + 0.003 for _ in range(int(torch.Size(shape).numel()))
    )
    grid = d.leaf(shape, name_of(d.values[x]), numbers=numbers)
    padding = d.pick(("zeros", "border", "reflection"))
    return [
        grid,
        f"mode='{d.pick(('bilinear', 'bilinear', 'nearest'))}'",
        f"padding_mode='{padding}'",
        f"align_corners={d.flag()}",
    ]


def grid_size(d: Draft, x: str) -> list[str]:
    count = int(d.values[x].shape[-1]) - 1
    size = (int(d.values[x].shape[0]), 1, *(d.pick((1, 2, 3)) for _ in range(count)))
    return [str(size), f"align_corners={d.flag()}"]


def columns(d: Draft, x: str) -> list[str]:
    return [str(d.pick((1, 2))), *d.optional("padding=1"), *d.optional(f"stride={d.pick((1, 2))}")]


def folded(d: Draft, x: str) -> list[str]:
    return ["(3, 3)", "(2, 2)"]


def mode_of_padding(d: Draft, x: str) -> list[str]:
    count = d.values[x].ndim - 2
    sizes = tuple(d.pick((0, 1, 1, -1)) for _ in range(2 * count))
    return [str(sizes), f"mode='{d.pick(('reflect', 'replicate', 'circular'))}'"]


def distances(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    other = d.leaf(
        (*map(int, value.shape[:-2]), d.pick((1, 2, 3)), int(value.shape[-1])),
        name_of(value),
        special=False,
    )
    order = d.pick(("1.0", "2.0", "3.0", "float('inf')"))
    return [other, *d.optional(f"p={order}")]


EQUATIONS = (
    ("ij,jk->ik", (3, 2)), ("ij,kj->ik", (2, 3)), ("ij,ij->", (2, 3)), ("ij,ij->j", (2, 3)),
    ("ij,jk", (3, 2)), ("ij,j->i", (3,)), ("i...,...i->...", (3, 2)), ("ij,kl->ikjl", (1, 2)),
)  # fmt: skip


def einsum(d: Draft, x: str) -> list[str]:
    equation, shape = d.pick(EQUATIONS)
    return [f"'{equation}'", x, d.leaf(shape, name_of(d.values[x]), special=False)]


def alone_in_einsum(d: Draft, x: str) -> list[str]:
    equation = d.pick(("'ij->ji'", "'ii->i'", "'ij->'", "'ij->i'", "'...j->...'", "'ii'"))
    return [equation, x]


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


def speech(d: Draft, x: str) -> list[str]:
    """targets and lengths; x: (steps, batch, classes)."""
    steps, batch, classes = map(int, d.values[x].shape)
    most = d.pick((1, 2))
    targets = d.leaf(
        (batch, most),
        "int64",
        numbers=tuple(d.rng.randint(1, classes - 1) for _ in range(batch * most)),
    )
    lengths = d.leaf((batch,), "int64", numbers=(steps,) * batch)
    sizes = d.leaf((batch,), "int64", numbers=tuple(d.rng.randint(1, most) for _ in range(batch)))
    return [
        targets,
        lengths,
        sizes,
        *d.optional(f"reduction='{d.pick(('sum', 'none'))}'"),
        *d.optional("zero_infinity=True"),
    ]


def recurrent(gates: int) -> Arguments:
    def arguments(d: Draft, x: str) -> list[str]:
        value = d.values[x]
        dtype, hidden = name_of(value), d.pick((1, 2))
        state = d.leaf((1, int(value.shape[1]), hidden), dtype, special=False)
        width = gates * hidden
        shapes = ((width, int(value.shape[2])), (width, hidden), (width,), (width,))
        weights = ", ".join(d.leaf(s, dtype, special=False) for s in shapes)
        states = f"({state}, {d.leaf((1, int(value.shape[1]), hidden), dtype, special=False)})"
        return [
            states if gates == 4 else state,
            f"[{weights}]",
            "True",
            "1",
            "0.0",
            "False",
            "False",
            "False",
        ]

    return arguments


def heads(d: Draft, x: str) -> list[str]:
    """The rest of multi_head_attention_forward; x: (steps, batch, 2 or 4)."""
    size = int(d.values[x].shape[-1])
    dtype = name_of(d.values[x])
    shapes = ((3 * size, size), (3 * size,), (size, size), (size,))
    names = [d.leaf(s, dtype, special=False) for s in shapes]
    return [
        x,
        x,
        str(size),
        "2",
        names[0],
        names[1],
        "None",
        "None",
        "False",
        "0.0",
        names[2],
        names[3],
        f"training={d.flag()}",
    ]


def reduced(d: Draft) -> list[str]:
    return d.optional(f"reduction='{d.pick(('mean', 'sum', 'none'))}'")


def same_leaf(d: Draft, x: str, numbers: tuple[float, ...] | None = None) -> str:
    value = d.values[x]
    size = int(value.numel())
    chosen = tuple(d.pick(numbers) for _ in range(size)) if numbers else None
    return d.leaf(tuple(value.shape), name_of(value), numbers=chosen, special=False, grad=False)


def coin(d: Draft, x: str) -> list[str]:
    weight = [f"weight={same_leaf(d, x)}"] if d.chance(0.3) else []
    return [same_leaf(d, x, (0.0, 1.0, 0.25)), *weight, *reduced(d)]


def coin_of_logits(d: Draft, x: str) -> list[str]:
    weight = [f"pos_weight={same_leaf(d, x, (0.5, 2.0))}"] if d.chance(0.4) else []
    return [*coin(d, x), *weight]


def signs(d: Draft, x: str) -> list[str]:
    return [same_leaf(d, x, (1.0, -1.0)), *reduced(d)]


def gaussian(d: Draft, x: str) -> list[str]:
    return [
        same_leaf(d, x),
        same_leaf(d, x, (0.5, 1.0, 2.0)),
        *d.optional("full=True"),
        *reduced(d),
    ]


def ranking(d: Draft, x: str) -> list[str]:
    return [same_leaf(d, x), same_leaf(d, x, (1.0, -1.0)), *d.optional("margin=0.5"), *reduced(d)]


def triplet(d: Draft, x: str) -> list[str]:
    return [same_leaf(d, x), same_leaf(d, x), *d.optional("swap=True"), *reduced(d)]


def cosine_target(d: Draft, x: str) -> list[str]:
    rows = int(d.values[x].shape[0])
    target = d.leaf((rows,), "int64", numbers=tuple(d.pick((1, -1)) for _ in range(rows)))
    return [same_leaf(d, x), target, *reduced(d)]


def classes(d: Draft, x: str) -> list[str]:
    rows, count = map(int, d.values[x].shape)
    return [
        d.leaf((rows,), "int64", numbers=tuple(d.rng.randint(0, count - 1) for _ in range(rows))),
        *reduced(d),
    ]


def weighted_classes(d: Draft, x: str) -> list[str]:
    found = classes(d, x)
    if d.chance(0.3):
        found[0] = f"{same_leaf(d, x)}.softmax(1)"
    weights = tuple(d.pick((0.5, 1.0, 2.0)) for _ in range(int(d.values[x].shape[1])))
    weight = d.leaf((len(weights),), name_of(d.values[x]), numbers=weights, grad=False)
    return [*found, *d.optional(f"weight={weight}"), *d.optional("label_smoothing=0.25")]


def many_labels(d: Draft, x: str) -> list[str]:
    return [same_leaf(d, x, (0.0, 1.0)), *reduced(d)]


def listed_labels(d: Draft, x: str) -> list[str]:
    rows, count = map(int, d.values[x].shape)
    numbers = tuple(
        n for _ in range(rows) for n in (d.rng.randint(0, count - 1), *(-1,) * (count - 1))
    )
    return [d.leaf((rows, count), "int64", numbers=numbers), *reduced(d)]


def product_beside(rank: int) -> Arguments:
    """Two factors of what is added to x; rank: of the first."""

    def arguments(d: Draft, x: str) -> list[str]:
        shape = tuple(map(int, d.values[x].shape))
        dtype, inner = name_of(d.values[x]), d.pick((1, 2, 3))
        if rank == 1:  # addr
            pair = ((shape[0],), (shape[1],))
        elif len(shape) == 1:  # addmv
            pair = ((shape[0], inner), (inner,))
        else:
            batch = shape[:1] if len(shape) == 3 else (2,) * (rank - 2)
            pair = ((*batch, shape[-2], inner), (*batch, inner, shape[-1]))
        names = [d.leaf(s, dtype, special=False) for s in pair]
        return [*names, *d.optional("beta=0.5"), *d.optional("alpha=2")]

    return arguments


def vector_for(d: Draft, x: str) -> list[str]:
    return [d.leaf((int(d.values[x].shape[-1]),), name_of(d.values[x]), special=False)]


def triples(d: Draft, x: str) -> list[str]:
    return [
        d.leaf(tuple(d.values[x].shape), name_of(d.values[x]), special=False),
        *d.optional("dim=-1"),
    ]


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


def weights_of_slope(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    channels = int(value.shape[1]) if value.ndim > 1 else 1
    return [d.leaf((d.pick((1, channels)),), name_of(value), special=False)]


def shape_of_fill(d: Draft, x: str) -> list[str]:
    return [str(d.shape()), d.number(x)]


def second(low: float, high: float) -> Arguments:
    """A partner whose numbers lie between two bounds."""

    def arguments(d: Draft, x: str) -> list[str]:
        value = d.values[x]
        numbers = tuple(round(d.rng.uniform(low, high) * 4) / 4 for _ in range(int(value.numel())))
        return [d.leaf(tuple(value.shape), name_of(value), numbers=numbers, grad=False)]

    return arguments


def between(low: float, high: float, dtypes: tuple[str, ...] = WIDE) -> Operand:
    def operand(d: Draft) -> str:
        shape = d.shape()
        numbers = tuple(d.rng.uniform(low, high) for _ in range(int(torch.Size(shape).numel())))
        return d.leaf(shape, d.pick(dtypes), numbers=tuple(round(n * 16) / 16 for n in numbers))

    return operand


def detached(operand: Operand) -> Operand:
    """An operand of functions without a derivative in PyTorch."""
    return lambda d: f"{operand(d)}.detach()"


def degree(d: Draft, x: str) -> list[str]:
    return [str(d.pick((0, 1, 2, 3, 5)))]


def affine_quantization(d: Draft, x: str) -> list[str]:
    return ["0.25", str(d.pick((0, 3))), "0", str(d.pick((15, 255)))]


# -- matrices

recipe("inverse linalg.inv pinverse linalg.pinv", nothing, own=matrix)
recipe("det linalg.det slogdet linalg.slogdet", nothing, own=matrix)
recipe("logdet", nothing, own=positive)
recipe("linalg.solve", right_side, own=matrix)
recipe("linalg.solve_triangular", triangular_side, own=triangle)
recipe(
    "triangular_solve",
    lambda d, x: [*right_side(d, x), x],
    own=matrix,
    listed=True,
    result="{}[0]",
)
recipe("linalg.cholesky cholesky", of("", "upper=True"), own=positive)
recipe("cholesky_inverse", nothing, own=triangle)
recipe("linalg.qr qr", nothing, own=tall, result="{}[1].square()")
recipe("linalg.svd svd", nothing, own=oblong, result="{}[1]")
recipe("linalg.svdvals", nothing, own=oblong)
recipe("linalg.eigh", nothing, own=symmetric, result="{}[0]")
recipe("linalg.eigvalsh", nothing, own=symmetric)
recipe("matrix_power linalg.matrix_power", of("0", "1", "2", "3", "-1", "-2"), own=matrix)
recipe("linalg.lstsq", whole_side, own=tall, result="{}[0]")
recipe("linalg.lu_factor", nothing, own=matrix, result="{}[0]")
recipe("linalg.matrix_rank", nothing, own=oblong)
recipe("linalg.cond", of("", "1", "'fro'", "float('inf')", "2"), own=matrix)
recipe(
    "linalg.matrix_norm",
    of("", "'fro'", "1", "-1", "float('inf')", "'nuc'", "2", "keepdim=True"),
    own=oblong,
)
recipe("linalg.vector_norm", of("", "1", "float('inf')", "3", "0.5", "dim=-1", "-1"), own=oblong)
recipe(
    "linalg.norm",
    of("", "1", "2", "'fro'", "dim=-1", "float('inf'), dim=0"),
    own=fresh((2, 3), (3, 3), dtypes=WIDE),
)
recipe("matrix_exp linalg.matrix_exp", nothing, own=fresh((2, 2), (3, 3), (2, 2, 2), dtypes=WIDE))
recipe("linalg.diagonal", of("", "offset=1", "dim1=0, dim2=1"), "moves", own=oblong)
recipe("linalg.vecdot", like_itself, "algebra", own=fresh((2, 3), (3,), dtypes=WIDE))
recipe("linalg.cross cross", triples, "algebra", own=fresh((3,), (2, 3), (4, 3), dtypes=WIDE))
recipe("linalg.vander vander", of("", "N=2", "N=4"), "algebra", own=fresh((2,), (3,), dtypes=WIDE))
recipe("linalg.tensorinv", of("ind=1"), own=lambda d: matrix(d, batched=False))
recipe("einsum", einsum, "algebra", own=fresh((2, 3), dtypes=LAYERS), listed=True)
recipe("addmm", product_beside(2), "algebra", own=fresh((2, 3), (3, 1)))
recipe("baddbmm", product_beside(2), "algebra", own=fresh((2, 2, 3), (1, 3, 2)))
recipe("addbmm", product_beside(3), "algebra", own=fresh((2, 3)))
recipe("addmv", product_beside(2), "algebra", own=fresh((2,), (3,)))
recipe("addr", product_beside(1), "algebra", own=fresh((2, 3)))
recipe("mv", vector_for, "algebra", own=fresh((2, 3), (1, 2)))
recipe("cdist", distances, own=fresh((2, 3), (3, 2), (2, 2, 3), dtypes=WIDE))
recipe(
    "pdist", of("", "1.0", "3.0", "float('inf')"), own=fresh((3, 2), (4, 3), (1, 2), dtypes=WIDE)
)

# -- spectra and complex numbers

recipe("fft.fft fft.ifft", spectrum, own=real_or_complex, result=PAIRS)
recipe("fft.fftn fft.ifftn", norm_of_spectrum, own=real_or_complex, result=PAIRS)
recipe("fft.rfft fft.ihfft", spectrum, own=fresh((4,), (5,), (2, 3), dtypes=WIDE), result=PAIRS)
recipe("fft.irfft fft.hfft", spectrum, own=real_or_complex)
recipe(
    "fft.rfftn fft.ihfftn",
    norm_of_spectrum,
    own=fresh((4,), (2, 3), (2, 3, 4), dtypes=WIDE),
    result=PAIRS,
)
recipe(
    "fft.rfft2 fft.fft2 fft.ifft2 fft.ihfft2",
    norm_of_spectrum,
    own=fresh((3, 4), (2, 3), (2, 3, 4), dtypes=WIDE),
    result=PAIRS,
)
recipe(
    "fft.irfftn fft.irfft2 fft.hfft2 fft.hfftn",
    norm_of_spectrum,
    own=fresh((3, 4), (2, 3), (2, 3, 4), dtypes=WIDE),
)
recipe(
    "fft.fftshift fft.ifftshift",
    of("", "dim=-1", "dim=0"),
    "moves",
    own=fresh((4,), (2, 3), (3, 5)),
)
recipe("imag", nothing, "moves", own=complex_numbers)
recipe("view_as_real", nothing, "moves", own=complex_numbers)
recipe("polar", second(-3, 3), own=between(0.25, 3), result=PAIRS)
recipe(
    "stft",
    of(
        "4, return_complex=True",
        "4, 2, return_complex=True",
        "3, 1, center=False, return_complex=True",
    ),
    own=fresh((8,), (2, 9), dtypes=WIDE),
    result=PAIRS,
)

# -- layers

recipe("max_pool3d", dilated, "moves jumps", own=fresh((1, 2, 3, 4, 3), (2, 3, 3, 2)))
recipe("avg_pool1d", average, own=fresh((1, 2, 5), (2, 4)))
recipe("avg_pool2d", average, own=fresh((1, 2, 3, 4), (2, 3, 5)))
recipe("avg_pool3d", average, own=fresh((1, 2, 3, 4, 3), (2, 3, 3, 2)))
recipe("max_pool1d_with_indices", dilated, "moves jumps ties", own=fresh((1, 2, 5), (2, 4)))
recipe("max_pool2d_with_indices", dilated, "moves jumps ties", own=fresh((1, 2, 3, 4), (2, 3, 5)))
recipe("adaptive_avg_pool3d", of("1", "2", "(2, 1, 3)"), own=fresh((1, 2, 3, 4, 3), (2, 3, 3, 2)))
recipe(
    "adaptive_max_pool3d",
    of("1", "2", "(2, 1, 3)"),
    "moves jumps",
    own=fresh((1, 2, 3, 4, 3), (2, 3, 3, 2)),
)
recipe("lp_pool1d", power_pool, own=fresh((1, 2, 5), (2, 4)))
recipe("lp_pool2d", power_pool, own=fresh((1, 2, 3, 4), (2, 3, 5)))
recipe("lp_pool3d", power_pool, own=fresh((1, 2, 3, 4, 3)))
recipe("conv1d", filters(1), own=fresh((1, 2, 5), (2, 4, 3), (2, 4)))
recipe("conv2d", filters(2), own=fresh((1, 2, 4, 3), (2, 4, 3, 3), (2, 3, 4)))
recipe("conv3d", filters(3), own=fresh((1, 2, 3, 3, 4), (2, 3, 4, 3)))
recipe("conv_transpose1d", filters(1, True), own=fresh((1, 2, 5), (2, 4, 3), (2, 4)))
recipe("conv_transpose2d", filters(2, True), own=fresh((1, 2, 4, 3), (2, 4, 3, 3), (2, 3, 4)))
recipe("conv_transpose3d", filters(3, True), own=fresh((1, 2, 3, 3, 4), (2, 3, 4, 3)))
recipe("scaled_dot_product_attention", attention, own=fresh((1, 2, 2, 3), (2, 3, 2), (1, 1, 3, 4)))
recipe("batch_norm", batch_statistics, own=fresh((4, 2), (3, 2, 4), (2, 3, 2, 2), dtypes=WIDE))
recipe("instance_norm", instance, "spread", own=fresh((2, 2, 4), (1, 3, 2, 4), dtypes=WIDE))
recipe("group_norm", group, "spread", own=fresh((2, 2, 4), (1, 4, 2, 4), dtypes=WIDE))
recipe("layer_norm", layer, "spread", own=fresh((2, 4), (2, 3, 4), dtypes=WIDE))
recipe("local_response_norm", of("2", "3", "1"), own=fresh((1, 3, 4), (2, 4, 2, 2), dtypes=WIDE))
recipe("embedding_bag", bag, own=fresh((3, 2), (4, 3), dtypes=WIDE), listed=True)
recipe("embedding", table, "moves", own=fresh((3, 2), (4, 3)), listed=True)
recipe(
    "interpolate",
    resized,
    own=fresh((1, 2, 4), (1, 1, 3, 4), (2, 1, 2, 3), (1, 1, 2, 3, 2), dtypes=WIDE),
)
recipe("grid_sample", sampled, own=fresh((1, 2, 3, 4), (2, 1, 3, 3), (1, 1, 2, 3, 3), dtypes=WIDE))
recipe("affine_grid", grid_size, own=fresh((1, 2, 3), (2, 2, 3), (1, 3, 4), dtypes=WIDE))
recipe("F.unfold", columns, "moves", own=fresh((1, 2, 3, 4), (2, 1, 2, 3)))
recipe("fold", folded, "algebra", own=fresh((1, 4, 4), (2, 8, 4), (4, 4)))
recipe("pad", mode_of_padding, "moves", own=fresh((1, 2, 4), (1, 2, 3, 4), (1, 1, 3, 3, 4), (2, 3)))
recipe(
    "ctc_loss",
    speech,
    own=lambda d: f"{d.leaf((4, 2, 3), d.pick(WIDE), special=False)}.log_softmax(-1)",
)
recipe("rnn_tanh rnn_relu", recurrent(1), own=fresh((3, 2, 2), (1, 1, 3), dtypes=WIDE))
recipe("gru", recurrent(3), own=fresh((3, 2, 2), (1, 1, 3), dtypes=WIDE))
recipe("lstm", recurrent(4), own=fresh((3, 2, 2), (1, 1, 3), dtypes=WIDE))
recipe("multi_head_attention_forward", heads, own=fresh((3, 2, 4), (2, 1, 2), dtypes=WIDE))
recipe("prelu", weights_of_slope, "jumps", own=fresh((2, 3), (1, 2, 3), (4,)))
recipe(
    "bilinear",
    lambda d, x: [x, d.leaf((2, 3, 3), name_of(d.values[x]), special=False)],
    own=fresh((2, 3), (3,), dtypes=WIDE),
)

# -- losses

recipe("binary_cross_entropy", coin, own=probabilities)
recipe("binary_cross_entropy_with_logits", coin_of_logits, own=fresh((3,), (2, 3)))
recipe(
    "hinge_embedding_loss soft_margin_loss", signs, "jumps", own=fresh((3,), (2, 3), dtypes=WIDE)
)
recipe("gaussian_nll_loss", gaussian, own=fresh((3,), (2, 3), dtypes=WIDE))
recipe("margin_ranking_loss", ranking, "jumps", own=fresh((3,), (2, 3), dtypes=WIDE))
recipe("triplet_margin_loss", triplet, own=fresh((2, 3), (3, 2), dtypes=WIDE))
recipe("cosine_embedding_loss", cosine_target, own=fresh((2, 3), (3, 2), dtypes=WIDE))
recipe("multi_margin_loss", classes, "jumps", own=fresh((2, 3), (3, 4), dtypes=WIDE))
recipe("cross_entropy", weighted_classes, own=fresh((2, 3), (3, 4)))
recipe("multilabel_soft_margin_loss", many_labels, own=fresh((2, 3), (3, 4), dtypes=WIDE))
recipe("multilabel_margin_loss", listed_labels, "jumps", own=fresh((2, 3), (3, 4), dtypes=WIDE))

# -- positions and parts

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

# -- special functions

recipe("i1 i1e erfcx", nothing, own=between(-4, 4))
recipe(
    "bessel_j0 bessel_j1 modified_bessel_i0 modified_bessel_i1 spherical_bessel_j0 airy_ai",
    nothing,
    own=detached(between(-4, 4, ("float32",))),  # PyTorch's are no better than this in float64
)
recipe(
    "bessel_y0 bessel_y1 modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 "
    "scaled_modified_bessel_k1",
    nothing,
    own=between(0.25, 6, ("float32",)),
)
recipe(
    "igamma igammac gammainc gammaincc",
    second(0.25, 4),
    own=detached(between(0.5, 4)),
)
recipe("zeta", second(0.5, 4), own=detached(between(1.5, 4)))
recipe("mvlgamma multigammaln", of("1", "2"), own=between(2, 6))
recipe("ndtri", nothing, own=between(0.125, 0.875))
recipe(
    "chebyshev_polynomial_t chebyshev_polynomial_u hermite_polynomial_h hermite_polynomial_he "
    "laguerre_polynomial_l legendre_polynomial_p chebyshev_polynomial_v chebyshev_polynomial_w",
    degree,
    own=detached(between(-2, 2)),
)
