"""Samples of all ops: those of arithmetic here, activations in activation_samples.py, other
ops of neural networks in nn_samples.py.

Shapes are small and odd, so that two and three ranks get uneven parts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from oneflow.core import dtype as dtypes

from .activation_samples import ACTIVATION_SAMPLES
from .attention_samples import ATTENTION_SAMPLES
from .box_samples import BOX_SAMPLES
from .integer_samples import integer_samples
from .nn_samples import NN_SAMPLES
from .one_embedding_samples import ONE_EMBEDDING_SAMPLES
from .paged_samples import PAGED_SAMPLES
from .quantized_samples import quantized_samples
from .recurrent_samples import RECURRENT_SAMPLES
from .row_samples import ROW_SAMPLES
from .sample import Sample, between, booleans, distinct, integers, normal
from .special_samples import SPECIAL_SAMPLES

Array = np.ndarray[Any, Any]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_ERF = np.vectorize(math.erf, otypes=[np.float64])
_ANY = normal(5, 4)
_POSITIVE = between(0.2, 3.0, 5, 4)
_UNIT = between(-0.9, 0.9, 5, 4)
_EDGY = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5])

# name: (input, reference)
UNARY: dict[str, tuple[Array, Any]] = {
    "neg": (_ANY, lambda x: -x),
    "abs": (_ANY, np.abs),
    "exp": (_ANY, np.exp),
    "exp2": (_ANY, np.exp2),
    "expm1": (_ANY, np.expm1),
    "log": (_POSITIVE, np.log),
    "log1p": (_POSITIVE, np.log1p),
    "log2": (_POSITIVE, np.log2),
    "log10": (_POSITIVE, np.log10),
    "sqrt": (_POSITIVE, np.sqrt),
    "rsqrt": (_POSITIVE, lambda x: 1 / np.sqrt(x)),
    "square": (_ANY, np.square),
    "reciprocal": (_POSITIVE, lambda x: 1 / x),
    "sin": (_ANY, np.sin),
    "cos": (_ANY, np.cos),
    "tan": (_UNIT, np.tan),
    "asin": (_UNIT, np.arcsin),
    "acos": (_UNIT, np.arccos),
    "atan": (_ANY, np.arctan),
    "sinh": (_ANY, np.sinh),
    "cosh": (_ANY, np.cosh),
    "tanh": (_ANY, np.tanh),
    "asinh": (_ANY, np.arcsinh),
    "acosh": (between(1.2, 3.0, 5, 4), np.arccosh),
    "atanh": (_UNIT, np.arctanh),
    "erf": (_ANY, _ERF),
    "sigmoid": (_ANY, _sigmoid),
    "relu": (_ANY, lambda x: np.maximum(x, 0)),
    "silu": (_ANY, lambda x: x * _sigmoid(x)),
    "sign": (_ANY, np.sign),
    "floor": (_ANY, np.floor),
    "ceil": (_ANY, np.ceil),
    "round": (_ANY * 3, np.round),
    "trunc": (_ANY * 3, np.trunc),
    "logical_not": (np.array([0.0, 1.0, -2.0]), lambda x: x == 0),
    "isnan": (_EDGY, np.isnan),
    "isinf": (_EDGY, np.isinf),
    "isfinite": (_EDGY, np.isfinite),
    "copy": (_ANY, lambda x: x),
    "amp_white_identity": (_ANY, lambda x: x),
    "amp_black_identity": (_ANY, lambda x: x),
    "piecewise_linear": (_ANY, lambda x: x),
}


def _silu_slope(x: Array) -> Array:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


UNARY_GRADS = {
    "relu_grad": lambda d, y: d * (y > 0),
    "tanh_grad": lambda d, y: d * (1 - y * y),
    "sigmoid_grad": lambda d, y: d * y * (1 - y),
    "silu_grad": lambda d, x: d * _silu_slope(x),
}


def _unary() -> list[Sample]:
    result = []
    for name, (x, reference) in UNARY.items():
        result.append(Sample(name, (x,), {}, reference))
        result.append(Sample(name, (x.reshape(-1)[1:2].reshape(()),), {}, reference))
    for name, formula in UNARY_GRADS.items():
        result.append(Sample(name, (normal(5, 4, seed=1), _ANY), {}, formula))
    result += [
        Sample("bitwise_not", (integers(-9, 9, 5),), {}, np.invert),
        Sample(
            "nonzero_steps",
            (np.array([0.0, 2.0, -1.0, 0.0, np.nan]),),
            {},
            lambda x: np.where(x == 0, 0.0, 1.0),
            wrt=(),
        ),
        Sample("neg", (integers(-9, 9, 5),), {}, np.negative),
        Sample("abs", (integers(-9, 9, 5, dtype=np.int32),), {}, np.abs),
        Sample("relu", (integers(-9, 9, 5, dtype=np.int8),), {}, lambda x: np.maximum(x, 0)),
        Sample("floor", (integers(-9, 9, 5),), {}, lambda x: x),
        Sample("copy", (booleans(5, 3),), {}, lambda x: x),
        Sample("isnan", (integers(-9, 9, 5),), {}, lambda x: x != x),
        Sample("sigmoid", (np.array([-100.0, -20.0, 0.0, 90.0]),), {}, _sigmoid, tolerance=1e-7),
        Sample("silu", (np.array([-100.0, -20.0, 0.0, 90.0]),), {}, lambda x: x * _sigmoid(x)),
        Sample("full_like", (_ANY,), {"value": 0}, lambda x, value: np.zeros_like(x)),
        Sample("full_like", (_ANY,), {"value": 2.5}, lambda x, value: np.full_like(x, value)),
    ]
    bounds: list[dict[str, Any]] = [
        {"min": -0.5, "max": 0.7},
        {"min": None, "max": 0.2},
        {"min": 0.1, "max": None},
    ]
    for attrs in bounds:
        result.append(Sample("clamp", (_ANY,), attrs, lambda x, min, max: np.clip(x, min, max)))
    ints = integers(-9, 9, 5)
    clip = lambda x, min, max: np.clip(x, min, max)  # noqa: E731
    result.append(Sample("clamp", (ints,), {"min": -2, "max": 3}, clip))
    return result


# ---- binary, comparisons, scalars ----------------------------------------------------------------

BINARY: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "fmod": np.fmod,
    "floor_divide": np.floor_divide,
    "atan2": np.arctan2,
}
COMPARE: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
_BITWISE: dict[str, Any] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}
_SHAPES = (((5, 4), (5, 4)), ((5, 4), (4,)), ((1, 4), (5, 1)), ((3, 1, 4), (5, 1)), ((), (5, 4)))


def _binary() -> list[Sample]:
    result = []
    for name, reference in BINARY.items():
        for a, b in _SHAPES:
            inputs = between(0.3, 3.0, *a, seed=1), between(0.4, 2.5, *b, seed=2)
            result.append(Sample(name, inputs, {}, reference))
        if name not in ("div", "atan2"):
            ints = integers(1, 5, 5, 4), integers(1, 4, 4, seed=1)
            result.append(Sample(name, ints, {}, reference))
    result += [
        Sample("maximum", (booleans(5), booleans(5, seed=1)), {}, np.maximum),
        Sample("mul", (booleans(5), booleans(5, seed=1)), {}, np.multiply),
        Sample("fmod", (normal(5, 4) * 4, between(0.5, 2, 5, 4)), {}, np.fmod),
        Sample("floor_divide", (normal(5, 4) * 4, between(0.5, 2, 5, 4)), {}, np.floor_divide),
        Sample("remainder", (normal(5, 4) * 4, between(0.5, 2, 5, 4)), {}, np.remainder),
        Sample("remainder", (normal(5, 4) * 4, between(-2, -0.5, 4)), {}, np.remainder),
    ]
    for name, reference in COMPARE.items():
        for a, b in _SHAPES:
            x, y = integers(0, 3, *a), integers(0, 3, *b, seed=1)
            result.append(Sample(name, (x, y), {}, reference))
            result.append(Sample(name, (x.astype(float), y.astype(float)), {}, reference))
        result.append(Sample(name, (booleans(5), booleans(5, seed=1)), {}, reference))
    for name, reference in _BITWISE.items():
        x, y = integers(-9, 9, 5, 4), integers(-9, 9, 4, seed=1)
        result.append(Sample(name, (x, y), {}, reference))
        result.append(Sample(name, (booleans(5), booleans(5, seed=1)), {}, reference))
    return result


def _scalar() -> list[Sample]:
    x, ints = between(0.3, 2.0, 5, 4), integers(-9, 9, 5, 4)
    powers: dict[str, Any] = {
        "scalar_add": (lambda x, value: x + value, (1.5, -2)),
        "scalar_mul": (lambda x, value: x * value, (1.5, 0, -2)),
        "scalar_pow": (lambda x, value: np.power(x, value), (0, 1, 2, 3, 0.5, -0.5, -1, 2.5, 7)),
        "scalar_rpow": (lambda x, value: np.power(value, x), (2.0, 0.5)),
        "scalar_div": (lambda x, value: x / value, (3, -0.7)),
        "scalar_rdiv": (lambda x, value: value / x, (1, -2.5)),
        "scalar_fmod": (lambda x, value: np.fmod(x, value), (0.7,)),
        "scalar_floor_divide": (lambda x, value: np.floor_divide(x, value), (0.7,)),
        "scalar_remainder": (lambda x, value: np.remainder(x, value), (0.7, -0.7)),
    }
    result = [
        Sample(name, (x,), {"value": value}, reference)
        for name, (reference, values) in powers.items()
        for value in values
    ]
    for name in ("scalar_add", "scalar_mul", "scalar_fmod", "scalar_floor_divide", "scalar_pow"):
        result.append(Sample(name, (ints,), {"value": 3}, powers[name][0]))
    for kind in ("eq", "ne", "lt", "le", "gt", "ge"):
        formula = COMPARE[kind]
        for y, value in ((ints, 1), (ints, 0.5), (np.round(normal(5, 4)), 0.0)):
            result.append(
                Sample(
                    "scalar_compare",
                    (y,),
                    {"value": value, "kind": kind},
                    lambda x, value, kind, formula=formula: formula(x, value),
                )
            )
    return result


def _choice() -> list[Sample]:
    x, y, mask = normal(5, 4), normal(5, 4, seed=1), booleans(5, 4)
    result = [
        Sample("where", (mask, x, y), {}, np.where),
        Sample("depend", (normal(5, 4), normal(3, 2, seed=1)), {}, lambda x, after: x),
        Sample("where", (booleans(5, 1), normal(4), normal(3, 5, 4)), {}, np.where),
        Sample("where", (mask, integers(0, 9, 5, 4), integers(0, 9, 4)), {}, np.where),
    ]
    for value in (0, -1e4, 2):
        for m in (mask, booleans(4), booleans(3, 5, 1)):
            result.append(
                Sample(
                    "masked_fill",
                    (x, m),
                    {"value": value},
                    lambda x, m, value: np.where(m, value, x),
                )
            )
    casts: list[tuple[Array, Any]] = [
        (x * 3, dtypes.int32),
        (x, dtypes.float64),
        (integers(-9, 9, 5, 4), dtypes.int8),
        (integers(-9, 9, 5, 4), dtypes.bool_),
        (booleans(5, 4), dtypes.int64),
        (x, dtypes.bool_),
    ]
    for z, dtype in casts:
        result.append(Sample("cast", (z,), {"dtype": dtype}, lambda z, dtype: z.astype(dtype.np)))
    return result


# ---- reductions ----------------------------------------------------------------------------------


def _reductions() -> list[Sample]:
    references: dict[str, tuple[Array, Any]] = {
        "reduce_sum": (normal(3, 5, 4), np.sum),
        "reduce_prod": (between(0.5, 1.5, 3, 5, 4), np.prod),
        "reduce_max": (distinct(3, 5, 4), np.max),
        "reduce_min": (distinct(3, 5, 4), np.min),
        "reduce_any": (booleans(3, 5, 4), np.any),
        "reduce_all": (booleans(3, 5, 4), np.all),
    }
    result = []
    for name, (x, function) in references.items():
        for dims in ((0,), (2,), (0, 2), (0, 1, 2), ()):
            for keepdim in (False, True):

                def reference(x: Array, dims: Any, keepdim: bool, f: Any = function) -> Any:
                    return f(x, axis=dims, keepdims=keepdim)

                result.append(Sample(name, (x,), {"dims": dims, "keepdim": keepdim}, reference))
    fold = lambda f: lambda x, dims: f(x, axis=dims)  # noqa: E731
    zeros = between(0.5, 1.5, 4, 5)
    zeros[0, 1] = zeros[1, 2] = zeros[1, 3] = 0
    result += [
        Sample("reduce_prod", (zeros,), {"dims": (1,)}, fold(np.prod)),
        Sample("reduce_sum", (integers(-9, 9, 5, 4),), {"dims": (0,)}, fold(np.sum)),
        Sample("reduce_sum", (integers(0, 9, 5, dtype=np.int32),), {"dims": (0,)}, fold(np.sum)),
        Sample("reduce_max", (integers(-9, 9, 5, 4),), {"dims": (1,)}, fold(np.max)),
        Sample("reduce_sum", (np.float64(3.0).reshape(()),), {"dims": ()}, fold(np.sum)),
        Sample("reduce_sum", (np.zeros((0, 3)),), {"dims": (0,)}, fold(np.sum)),
    ]
    for name, function in (("argmax", np.argmax), ("argmin", np.argmin)):
        for dim in (0, 1, 2):
            for keepdim in (False, True):

                def position(x: Array, dim: int, keepdim: bool, f: Any = function) -> Any:
                    return f(x, axis=dim, keepdims=keepdim)

                x = integers(0, 4, 3, 5, 4).astype(float)
                result.append(Sample(name, (x,), {"dim": dim, "keepdim": keepdim}, position))
    for dim in (0, 1):
        result += [
            Sample("cumsum", (normal(5, 4),), {"dim": dim}, lambda x, dim: np.cumsum(x, dim)),
            Sample(
                "cumprod",
                (between(0.5, 1.5, 5, 4),),
                {"dim": dim},
                lambda x, dim: np.cumprod(x, dim),
            ),
        ]
    return result


# ---- shapes --------------------------------------------------------------------------------------


def _shapes() -> list[Sample]:
    result = []
    for old, new in (
        ((5, 4), (5, 4)),
        ((6, 4), (24,)),
        ((24,), (6, 4)),
        ((5, 4), (4, 5)),
        ((2, 3, 4), (6, 2, 2)),
        ((3, 5, 4), (3, 20)),
        ((5, 1, 4), (1, 5, 4, 1)),
        ((5, 6, 4), (5, 3, 2, 4)),
        ((1,), ()),
        ((), (1, 1)),
        ((0, 3), (3, 0)),
        ((12, 5), (2, 6, 5)),
        ((5, 2, 6), (5, 12)),
    ):
        result.append(
            Sample("reshape", (normal(*old),), {"shape": new}, lambda x, shape: x.reshape(shape))
        )
    for dims in ((0, 1, 2), (2, 0, 1), (1, 0, 2)):
        result.append(
            Sample(
                "transpose", (normal(3, 5, 4),), {"dims": dims}, lambda x, dims: x.transpose(dims)
            )
        )
    for old, new in (((5, 1), (5, 4)), ((4,), (3, 5, 4)), ((), (5,)), ((5, 4), (5, 4))):
        result.append(
            Sample(
                "expand",
                (normal(*old),),
                {"shape": new},
                lambda x, shape: np.broadcast_to(x, shape),
            )
        )
    x = normal(3, 5, 4)
    result += [
        Sample("flip", (x,), {"dims": (1,)}, lambda x, dims: np.flip(x, dims)),
        Sample("flip", (x,), {"dims": (0, 2)}, lambda x, dims: np.flip(x, dims)),
        Sample("reshape", (booleans(6, 4),), {"shape": (24,)}, lambda x, shape: x.reshape(shape)),
    ]
    for shifts, dims in (((2,), (1,)), ((-1, 7), (0, 2)), ((0,), (0,))):
        result.append(
            Sample(
                "roll",
                (x,),
                {"shifts": shifts, "dims": dims},
                lambda x, shifts, dims: np.roll(x, shifts, dims),
            )
        )
    for pads, value in (((0, 0, 1, 2, 0, 3), 0), ((1, 1, 0, 0, 0, 0), 2.5), ((0,) * 6, 1)):
        result.append(
            Sample(
                "pad",
                (x,),
                {"pads": pads, "value": value},
                lambda x, pads, value: np.pad(
                    x, list(zip(pads[::2], pads[1::2], strict=True)), constant_values=value
                ),
            )
        )
    for diagonal in (-2, 0, 1, 9):
        attrs = {"diagonal": diagonal}
        result.append(Sample("tril", (x,), attrs, lambda x, diagonal: np.tril(x, diagonal)))
        result.append(Sample("triu", (x,), attrs, lambda x, diagonal: np.triu(x, diagonal)))
    for offset in (-2, 0, 1):
        result.append(
            Sample("diagonal", (x,), {"offset": offset}, lambda x, offset: _diagonal(x, offset))
        )
        diagonals = _diagonal(x, offset).copy()
        result.append(
            Sample("diag_embed", (diagonals,), {"offset": offset, "rows": 5, "columns": 4}, _embed)
        )
    return result + _slices() + _joins()


def _diagonal(x: Array, offset: int) -> Array:
    return np.diagonal(x, offset, -2, -1)


def _embed(x: Array, offset: int, rows: int, columns: int) -> Array:
    out = np.zeros((*x.shape[:-1], rows, columns))
    for k in range(x.shape[-1]):
        out[..., k - min(offset, 0), k + max(offset, 0)] = x[..., k]
    return out


def _index(starts: Any, stops: Any, steps: Any) -> tuple[slice, ...]:
    return tuple(slice(*s) for s in zip(starts, stops, steps, strict=True))


def _slices() -> list[Sample]:
    x = normal(3, 5, 4)
    result = []
    for starts, stops, steps in (
        ((0, 1, 0), (3, 4, 4), (1, 1, 1)),
        ((1, 0, 0), (2, 5, 4), (1, 2, 3)),
        ((0, 0, 0), (3, 5, 4), (1, 1, 1)),
        ((0, 2, 0), (3, 2, 4), (1, 1, 1)),
    ):
        attrs: dict[str, Any] = {"starts": starts, "stops": stops, "steps": steps}
        part = x[_index(**attrs)]
        fresh = normal(*part.shape, seed=3)

        def scatter(x: Array, shape: Any, **where: Any) -> Array:
            out = np.zeros(shape)
            out[_index(**where)] = x
            return out

        def update(ref: Array, value: Array, **where: Any) -> Array:
            out = ref.copy()
            out[_index(**where)] = value
            return out

        result += [
            Sample("slice", (x,), attrs, lambda x, **where: x[_index(**where)]),
            Sample("slice_scatter", (fresh,), {"shape": x.shape, **attrs}, scatter),
            Sample("slice_update", (x, fresh), attrs, update),
        ]
    return result


def _joins() -> list[Sample]:
    def cut(x: Array, sizes: Any, dim: int) -> tuple[Array, ...]:
        return tuple(np.split(x, np.cumsum(sizes)[:-1], dim))

    result = []
    for dim in (0, 1, 2):
        shapes = [[3, 5, 4] for _ in range(3)]
        for k, shape in enumerate(shapes):
            shape[dim] = k + 1
        xs = tuple(normal(*shape, seed=k) for k, shape in enumerate(shapes))
        result.append(Sample("concat", xs, {"dim": dim}, lambda *xs, dim: np.concatenate(xs, dim)))
        whole = np.concatenate(xs, dim)
        result.append(Sample("split", (whole,), {"sizes": (1, 2, 3), "dim": dim}, cut))
    result.append(
        Sample(
            "concat", (booleans(5), booleans(3)), {"dim": 0}, lambda *xs, dim: np.concatenate(xs)
        )
    )
    return result


# ---- indices -------------------------------------------------------------------------------------


def _indices() -> list[Sample]:
    result = []
    x = normal(6, 5, 4)
    for dim in (0, 1, 2):
        for index in (integers(0, 4, 7), integers(0, 4, 3, 4, dtype=np.int32), integers(0, 4)):
            taken = np.take(x, index, dim)
            result += [
                Sample("gather", (x, index), {"dim": dim}, lambda x, i, dim: np.take(x, i, dim)),
                Sample(
                    "gather_grad",
                    (normal(*taken.shape, seed=2), index),
                    {"dim": dim, "size": x.shape[dim]},
                    _gather_grad,
                ),
            ]
        shape = list(x.shape)
        shape[dim] = 3
        index = integers(0, x.shape[dim], *shape)
        unique = np.argsort(normal(*x.shape, seed=5), axis=dim)
        unique = np.ascontiguousarray(np.take(unique, range(3), dim))
        source = normal(*shape, seed=4)
        result += [
            Sample(
                "dim_gather",
                (x, index),
                {"dim": dim},
                lambda x, i, dim: np.take_along_axis(x, i, dim),
            ),
            Sample("dim_scatter", (x, unique, source), {"dim": dim}, _dim_scatter),
            Sample("dim_assign", (x, unique, source), {"dim": dim}, _dim_scatter),
            Sample("dim_scatter_add", (x, index, source), {"dim": dim}, _dim_scatter_add),
        ]
    for wraps in (False, True):
        index = integers(-4 if wraps else 0, 4, 5, 3)
        attrs = {"size": 4, "dim": 0, "wraps": wraps}
        result.append(Sample("checked_index", (index,), attrs, lambda i, **_: i % 4))
    for dtype in (dtypes.int64, dtypes.float32):
        result.append(
            Sample(
                "one_hot",
                (integers(0, 4, 5, 3),),
                {"depth": 4, "dtype": dtype},
                lambda i, depth, dtype: np.eye(depth, dtype=dtype.np)[i],
            )
        )
    return result


def _gather_grad(d: Array, index: Array, dim: int, size: int) -> Array:
    out = np.zeros((*d.shape[:dim], size, *d.shape[dim + index.ndim :]))
    for place in np.ndindex(index.shape):
        before = (slice(None),) * dim
        out[(*before, index[place])] += d[(*before, *place)]
    return out


def _dim_scatter(x: Array, index: Array, source: Array, dim: int) -> Array:
    out = x.copy()
    np.put_along_axis(out, index, source, dim)
    return out


def _dim_scatter_add(x: Array, index: Array, source: Array, dim: int) -> Array:
    out = x.copy()
    for place in np.ndindex(index.shape):
        out[(*place[:dim], index[place], *place[dim + 1 :])] += source[place]
    return out


def _sorts() -> list[Sample]:
    def ordered(x: Array, dim: int, descending: bool) -> tuple[Array, Array]:
        index = np.argsort(-x if descending else x, axis=dim, kind="stable")
        return np.take_along_axis(x, index, dim), index

    def best(x: Array, k: int, dim: int, largest: bool) -> tuple[Array, Array]:
        values, index = ordered(x, dim, largest)
        return np.take(values, range(k), dim), np.take(index, range(k), dim)

    result = []
    ties = integers(0, 3, 5, 4)
    for dim in (0, 1):
        for flag in (False, True):
            for x in (distinct(5, 4), ties):
                result += [
                    Sample("sort", (x,), {"dim": dim, "descending": flag}, ordered),
                    Sample("topk", (x,), {"k": 3, "dim": dim, "largest": flag}, best),
                ]
    return result


# ---- sources -------------------------------------------------------------------------------------


def _sources() -> list[Sample]:
    f32, i64 = dtypes.float32, dtypes.int64
    result = []
    for shape, dtype, value in (((5, 4), f32, 1.5), ((5,), i64, 3), ((), f32, 0), ((5, 4), f32, 0)):
        result.append(
            Sample(
                "constant",
                (),
                {"shape": shape, "dtype": dtype, "value": value},
                lambda shape, dtype, value: np.full(shape, value, dtype.np),
            )
        )
    for start, step, dtype in ((0, 1, i64), (0.5, -0.25, f32), (7, 3, dtypes.int32)):
        result.append(
            Sample(
                "arange",
                (),
                {"start": start, "step": step, "length": 7, "dtype": dtype},
                lambda start, step, length, dtype: (start + step * np.arange(length)).astype(
                    dtype.np
                ),
            )
        )
    for rows, columns in ((5, 5), (7, 4), (3, 8)):
        result.append(
            Sample(
                "eye",
                (),
                {"rows": rows, "columns": columns, "dtype": f32},
                lambda rows, columns, dtype: np.eye(rows, columns),
            )
        )
    for dtype in (f32, dtypes.float64):
        common: dict[str, Any] = {"shape": (5, 7, 3), "dtype": dtype, "seed": 1234567890123}
        result += [
            Sample("uniform", (), {**common, "low": -1.0, "high": 2.0}),
            Sample("normal", (), {**common, "mean": 1.0, "std": 2.0}),
        ]
    result += [
        Sample("randint", (), {"shape": (5, 7), "dtype": i64, "low": -3, "high": 9, "seed": 5}),
        Sample("randperm", (), {"n": 11, "dtype": i64, "seed": 5}),
        Sample("bernoulli", (between(0, 1, 5, 7),), {"seed": 5}),
        Sample("standard_gamma", (between(0.1, 9, 5, 7),), {"seed": 5}, wrt=()),
        Sample("poisson", (between(0.1, 40, 5, 7),), {"seed": 5}, wrt=()),
    ]
    return result


ARITHMETIC: list[Sample] = [
    *_unary(), *_binary(), *_scalar(), *_choice(), *_reductions(), *_shapes(), *_indices(),
    *_sorts(), *_sources(),
]  # fmt: skip

SAMPLES = [
    *ARITHMETIC, *ACTIVATION_SAMPLES, *ATTENTION_SAMPLES, *BOX_SAMPLES, *NN_SAMPLES,
    *ONE_EMBEDDING_SAMPLES, *PAGED_SAMPLES, *RECURRENT_SAMPLES, *ROW_SAMPLES, *SPECIAL_SAMPLES,
    *quantized_samples(),
    *integer_samples(),
]  # fmt: skip
