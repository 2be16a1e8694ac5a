"""Products of matrices, attention, convolutions."""

from __future__ import annotations

from oneflow.core.dtype import DType, bool_, float32
from oneflow.core.operand import Attrs
from oneflow.onnx.writer.builder import Builder, Call, wide
from oneflow.onnx.writer.elementwise import filled
from oneflow.onnx.writer.sizes import is_dynamic, product
from oneflow.onnx.writer.table import writes
from oneflow.ops.conv import Sizes


@writes("matmul")
def _matmul(b: Builder, call: Call) -> str:
    left, right = call.inputs
    if call.attrs["transpose_a"]:
        left = b.swap(left, call.types[0].ndim)
    if call.attrs["transpose_b"]:
        right = b.swap(right, call.types[1].ndim)
    return b("MatMul", left, right)


@writes("linear")
def _linear(b: Builder, call: Call) -> str:
    x, w, bias = call.inputs
    if call.types[0].ndim == 2:
        return b("Gemm", x, w, bias, transB=1)
    return b("Add", b("MatMul", x, b.swap(w, 2)), bias)


@writes("matmul_weight_grad")
def _weight_grad(b: Builder, call: Call) -> str:
    flat = [
        b.reshape(x, (product(t.shape[:-1]), t.shape[-1])) if t.ndim != 2 else x
        for x, t in zip(call.inputs, call.types, strict=True)
    ]
    if call.attrs["transpose"]:
        flat.reverse()
    return b("MatMul", b.swap(flat[0], 2), flat[1])


@writes("det")
def _det(b: Builder, call: Call) -> str:
    return b("Det", call.inputs[0])


# ---- attention -----------------------------------------------------------------------------------


@writes("attention")
def _attention(b: Builder, call: Call) -> tuple[str, ...]:
    """softmax(scale q k^T + mask) v, and the logarithm of the sums of the softmax if it is read."""
    types = call.types
    q, k, v = call.inputs[:3]
    heads = types[0].shape[-3] if types[0].ndim > 2 else 1
    groups = types[1].shape[-3] if types[1].ndim > 2 else 1
    if heads != groups:
        k, v = (
            _repeat(b, x, t.shape, heads // groups) for x, t in zip((k, v), types[1:3], strict=True)
        )
    dtype, ndim = types[0].dtype, types[0].ndim
    scaled = b("Mul", q, b.number(call.attrs["scale"], dtype))
    scores = b("MatMul", scaled, b.swap(k, ndim))
    scores, unseen = _masked(b, call, scores)
    share = b("Softmax", scores, axis=-1)
    if unseen:  # a row that sees nothing gives zeros, where the softmax says 0 / 0
        share = b("Where", unseen, b.number(0, dtype), share)
    out = b("MatMul", share, v)
    if not call.is_read(1):
        return out, ""
    lse = b.reduce("ReduceLogSumExp", b.cast(scores, wide(dtype), dtype), [-1])
    return out, b.cast(lse, call.results[1].dtype, wide(dtype))


def _masked(b: Builder, call: Call, scores: str) -> tuple[str, str]:
    """Return the scores with unseen places at -inf; and the rows that see nothing, if there may be
    any.
    """
    types, dtype = call.types, call.types[0].dtype
    low = b.number(float("-inf"), dtype)
    if call.attrs["is_causal"]:
        rows, columns = types[0].shape[-2], types[1].shape[-2]
        ones = filled(b, (rows, columns), 1, float32)
        seen = b("Cast", b("Trilu", ones, upper=0), to=9)
        return b("Where", seen, scores, low), ""
    if len(call.inputs) < 4:
        return scores, ""
    mask = call.inputs[3]
    if types[3].dtype is not bool_:
        made = b("Add", scores, mask)
        lowest = b.reduce("ReduceMax", made, [-1], keepdims=True)
        return made, b("Equal", lowest, low)
    made = b("Where", mask, scores, low)
    flags = b.cast(mask, float32, bool_)
    return made, b("Equal", b.reduce("ReduceMax", flags, [-1], keepdims=True), b.number(0, float32))


def _repeat(b: Builder, x: str, shape: tuple[int, ...], times: int) -> str:
    """Each head `times` times, one after the other."""
    lead, heads, rest = shape[:-3], shape[-3], shape[-2:]
    grown = b.expand(b.unsqueeze(x, [len(lead) + 1]), (*lead, heads, times, *rest))
    return b.reshape(grown, (*lead, heads * times, *rest))


@writes("attention_grad")
def _attention_grad(b: Builder, call: Call) -> tuple[str, ...]:
    d_out, q, k, v, out, lse = call.inputs[:6]
    types, dtype, ndim = call.types, call.types[1].dtype, call.types[1].ndim
    times = types[1].shape[-3] // types[2].shape[-3] if ndim > 2 else 1
    if times != 1:
        k, v = (_repeat(b, x, t.shape, times) for x, t in zip((k, v), types[2:4], strict=True))
    scale = b.number(call.attrs["scale"], dtype)
    forward = Call("attention", (q, k, v, *call.inputs[6:]), call.attrs,
                   (*types[1:4], *types[6:]), ())  # fmt: skip
    scores, unseen = _masked(b, forward, b("MatMul", b("Mul", q, scale), b.swap(k, ndim)))
    share = b("Exp", b("Sub", scores, b.unsqueeze(b.cast(lse, dtype, types[5].dtype), [-1])))
    if unseen:
        share = b("Where", unseen, b.number(0, dtype), share)
    d_share = b("MatMul", d_out, b.swap(v, ndim))
    paid = b.reduce("ReduceSum", b("Mul", d_out, out), [-1], keepdims=True)
    d_scores = b("Mul", b("Mul", share, b("Sub", d_share, paid)), scale)
    d_k = b("MatMul", b.swap(d_scores, ndim), q)
    d_v = b("MatMul", b.swap(share, ndim), d_out)
    if times != 1:
        d_k, d_v = (
            _shared(b, x, t.shape, times) for x, t in zip((d_k, d_v), types[2:4], strict=True)
        )
    return b("MatMul", d_scores, k), d_k, d_v


def _shared(b: Builder, x: str, shape: tuple[int, ...], times: int) -> str:
    """The sum over the heads that share one of `shape`."""
    apart = b.reshape(x, (*shape[:-2], times, *shape[-2:]))
    return b.reduce("ReduceSum", apart, [len(shape) - 2])


# ---- convolutions --------------------------------------------------------------------------------


def _window(attrs: Attrs, kernel: tuple[int, ...]) -> dict[str, object]:
    return {
        "kernel_shape": list(kernel),
        "strides": list(attrs["stride"]),
        "dilations": list(attrs["dilation"]),
        "group": attrs["groups"],
    }


@writes("conv")
def _conv(b: Builder, call: Call) -> str:
    a = call.attrs
    return b("Conv", *call.inputs, pads=[*a["padding"], *a["padding"]],
             **_window(a, call.types[1].shape[2:]))  # fmt: skip


@writes("conv_data_grad")
def _conv_data_grad(b: Builder, call: Call) -> str:
    """The transposed convolution."""
    a = call.attrs
    return transposed_conv(
        b, call.inputs[0], call.inputs[1], call.types[0].shape[2:], call.types[1].shape[2:],
        a["spatial"], a["stride"], a["padding"], a["dilation"], a["groups"], call.types[0].dtype,
    )  # fmt: skip


def transposed_conv(
    b: Builder, d: str, w: str, positions: Sizes, kernel: Sizes, spatial: Sizes, stride: Sizes,
    padding: Sizes, dilation: Sizes, groups: int, dtype: DType,
) -> str:  # fmt: skip
    """ConvTranspose to the sizes `spatial`, cut or padded where the windows reach other ones."""
    reach = zip(positions, stride, padding, dilation, kernel, strict=True)
    least = [(n - 1) * s - 2 * p + e * (k - 1) + 1 for n, s, p, e, k in reach]
    over = [size - own for size, own in zip(spatial, least, strict=True)]
    if is_dynamic(tuple(over)):
        raise b.refuse("has an output size that no fixed output_padding gives")
    ends = [p + max(0, -o) for p, o in zip(padding, over, strict=True)]
    inside = [min(max(o, 0), s - 1) for o, s in zip(over, stride, strict=True)]
    beyond = [max(o, 0) - i for o, i in zip(over, inside, strict=True)]
    made = b("ConvTranspose", d, w, pads=[*padding, *ends], output_padding=inside,
             kernel_shape=list(kernel), strides=list(stride), dilations=list(dilation),
             group=groups)  # fmt: skip
    if any(beyond):  # places that no window reaches
        pads = b.ints([0] * (len(beyond) + 4) + beyond)
        made = b("Pad", made, pads, b.number(0, dtype), mode="constant")
    return made


@writes("conv_filter_grad")
def _conv_filter_grad(b: Builder, call: Call) -> str:
    """A convolution of x over its samples by d_out as the kernel: strides and dilations swap."""
    a, kernel = call.attrs, call.attrs["kernel"]
    (d_out, x), (d_type, x_type) = call.inputs, call.types
    ndim, groups = x_type.ndim, a["groups"]
    n, channels = x_type.shape[:2]
    outs = d_type.shape[1]
    # (channels, groups of samples) as samples, so that a group's filters see its channels alone.
    turned = b.transpose(x, [1, 0, *range(2, ndim)])
    kernels = b.transpose(d_out, [1, 0, *range(2, ndim)])
    if groups > 1:
        own = channels // groups
        turned = b.reshape(turned, (groups, own, n, *x_type.shape[2:]))
        turned = b.transpose(turned, [1, 0, 2, *range(3, ndim + 1)])
        turned = b.reshape(turned, (own, groups * n, *x_type.shape[2:]))
    made = b("Conv", turned, kernels, kernel_shape=list(d_type.shape[2:]),
             strides=list(a["dilation"]), dilations=list(a["stride"]), group=groups,
             pads=[*a["padding"], *a["padding"]])  # fmt: skip
    spatial = range(2, ndim)
    made = b.slice(made, [0] * len(kernel), list(kernel), list(spatial))
    made = b.transpose(made, [1, 0, *spatial])
    return b.reshape(made, (outs, channels // groups, *kernel))
