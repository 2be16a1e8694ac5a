"""Recipes of layers: pools, convolutions, attention, norms, embeddings, recurrence."""

from __future__ import annotations

import torch

from .drawing import Draft, name_of
from .operands import WIDE, fresh, of
from .recipes import Arguments, recipe


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


def weights_of_slope(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    channels = int(value.shape[1]) if value.ndim > 1 else 1
    return [d.leaf((d.pick((1, channels)),), name_of(value), special=False)]


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
