"""Samples of the names on the shelf of compatible names (oneflow/compat/torch)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow.api.compat import EACH, ROWS

Sample = Callable[[Any], Any]


def _lists(m: Any, seed: int) -> list[Any]:
    """Two tensors of numbers within (0, 1), where every function is defined."""
    rng = np.random.default_rng(seed)
    shapes = ((2, 3), (4,))
    return [m.from_numpy(rng.uniform(0.1, 0.9, s).astype("float32")) for s in shapes]


OTHERS = {
    **{name: 2 for name in ("addcdiv", "addcmul")},
    **{name: 1 for name in ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "copy")},
    **{name: 1 for name in ("clamp_max", "clamp_min", "lerp")},
}
"""Functions that take further lists of tensors, and how many."""


def _each(name: str) -> list[Sample]:
    """The function of lists of tensors, and of a list and numbers."""
    base = name.removeprefix("_foreach_").rstrip("_")

    def of_lists(m: Any) -> Any:
        xs = _lists(m, 0)
        more = [_lists(m, i) for i in range(1, OTHERS.get(base, 0) + 1)]
        more += [0.25] if base == "lerp" else []
        found = getattr(m, name)(xs, *more)
        return found if found is not None and not name.endswith("_") else xs

    def of_numbers(m: Any) -> Any:
        xs = _lists(m, 0)
        found = getattr(m, name)(xs, [2.0, 0.5])
        return found if found is not None and not name.endswith("_") else xs

    takes_numbers = OTHERS.get(base) == 1 and base not in ("copy", "lerp")
    return [of_lists, of_numbers] if takes_numbers else [of_lists]


def _value(name: str) -> list[Sample]:
    """A product that is added with a factor of its own for each tensor."""
    return [
        *_each(name),
        lambda m: getattr(m, name)(_lists(m, 0), _lists(m, 1), _lists(m, 2), [2.0, -1.0]),
    ]


def _unscaled(m: Any) -> Any:
    xs, found = _lists(m, 0), m.zeros(1)
    m._amp_foreach_non_finite_check_and_unscale_(xs, found, m.tensor([0.25]))
    return xs, found


def _segments(reduce: str, **more: Any) -> Sample:
    def sample(m: Any) -> Any:
        data = m.from_numpy(np.linspace(-2, 3, 12, dtype="float32").reshape(6, 2))
        data.requires_grad_()
        lengths = m.tensor([2, 0, 3, 1])
        out = m.segment_reduce(data, reduce, lengths=lengths, **more)
        (out * m.tensor([[1.0], [0.0], [2.0], [3.0]])).nan_to_num().sum().backward()
        return out.detach(), data.grad.nan_to_num()

    return sample


def _ladder(m: Any) -> Any:
    """Segments of each row."""
    data = m.from_numpy(np.arange(8, dtype="float32").reshape(2, 4))
    return m.segment_reduce(data, "sum", lengths=m.tensor([[1, 3], [2, 2]]), axis=1)


def _raises(call: Callable[[Any], Any]) -> Sample:
    """The class of the error, as PyTorch's."""

    def sample(m: Any) -> str:
        try:
            call(m)
        except Exception as error:
            kinds = (IndexError, NotImplementedError, ValueError, TypeError, RuntimeError)
            return next(k.__name__ for k in kinds if isinstance(error, k))
        return "nothing"

    return sample


def _grouped(m: Any, a: tuple[int, ...], b: tuple[int, ...], ends: list[int]) -> Any:
    """Products of groups, written out where PyTorch's kernel needs a GPU."""
    x, y = (m.from_numpy(np.random.default_rng(0).standard_normal(s)) for s in (a, b))
    if m.__name__ == "torch":
        spans = [slice(i, j) for i, j in zip([0, *ends], ends, strict=False)]
        if y.ndim == 3:
            return m.cat([x[s] @ y[g] for g, s in enumerate(spans)])
        if x.ndim == 3:
            return m.cat([x[g] @ y[:, s] for g, s in enumerate(spans)], 1)
        return m.stack([x[:, s] @ y[s] for s in spans])
    return m.nn.functional.grouped_mm(x, y, offs=m.tensor(ends, dtype=m.int32))


def _logistic(m: Any) -> Any:
    d = m.distributions.LogisticNormal(m.tensor([0.5, -1.0]), m.tensor([1.0, 2.0]))
    x = m.tensor([0.2, 0.3, 0.5])
    return d.log_prob(x), d.loc, tuple(d.event_shape), d.expand((2,)).log_prob(x)


SAMPLES: dict[str, list[Sample]] = {
    **{name: _each(name) for name in EACH},
    "_foreach_addcmul": _value("_foreach_addcmul"),
    "_foreach_addcdiv": _value("_foreach_addcdiv"),
    "_foreach_add": [
        *_each("_foreach_add"),
        lambda m: m._foreach_add(_lists(m, 0), _lists(m, 1), alpha=2.0),
        lambda m: m._foreach_add(_lists(m, 0), 2.0),
    ],
    "_foreach_mm": [lambda m: m._foreach_mm(_lists(m, 0)[:1], [_lists(m, 1)[0].T])],
    "_amp_foreach_non_finite_check_and_unscale_": [_unscaled],
    "_foreach_pow": [*_each("_foreach_pow"), lambda m: m._foreach_pow(2.0, _lists(m, 0))],
    "_foreach_norm": [
        *_each("_foreach_norm"),
        lambda m: m._foreach_norm(_lists(m, 0), 1),
        lambda m: m._foreach_norm(_lists(m, 0), float("inf")),
    ],
    "_foreach_lerp": [
        *_each("_foreach_lerp"),
        lambda m: m._foreach_lerp(_lists(m, 0), _lists(m, 1), _lists(m, 2)),
        lambda m: m._foreach_lerp(_lists(m, 0), _lists(m, 1), weight=0.5),
    ],
    "segment_reduce": [
        *(_segments(reduce) for reduce in ("sum", "prod", "max", "min")),
        *(_segments(reduce, initial=1.5) for reduce in ("sum", "mean", "prod", "max", "min")),
        _ladder,
    ],
    "to_dense": [lambda m: m.ones(2).to_dense(), lambda m: m.ones(2).to_dense(m.float64)],
    "_shape_as_tensor": [lambda m: m._shape_as_tensor(m.ones(2, 3))],
    "_convert_indices_from_coo_to_csr": [
        lambda m: m._convert_indices_from_coo_to_csr(m.tensor([0, 0, 2]), 4)
    ],
    "_convert_indices_from_csr_to_coo": [
        lambda m: m._convert_indices_from_csr_to_coo(m.tensor([0, 2, 3]), m.tensor([1, 2, 0]))
    ],
    "_calculate_correct_fan": [
        lambda m: m.nn.init._calculate_correct_fan(m.ones(2, 3, 4), "fan_out"),
        lambda m: m.nn.init._calculate_correct_fan(m.ones(2, 3, 4), "FAN_IN"),
    ],
    "sym_int": [lambda m: m.sym_int(-2.5)],
    "sym_float": [lambda m: m.sym_float(2)],
    "sym_max": [lambda m: m.sym_max(1, 2.0), lambda m: m.sym_max(3, 2.0)],
    "sym_min": [lambda m: m.sym_min(1, 2.0)],
    "sym_not": [lambda m: m.sym_not(True)],
    "sym_ite": [lambda m: m.sym_ite(False, 1, 2)],
    "sym_sum": [lambda m: m.sym_sum([1, 2, 3])],
    "_check": [lambda m: m._check(True), _raises(lambda m: m._check(False, lambda: "no"))],
    "_check_index": [_raises(lambda m: m._check_index(False))],
    "_check_value": [_raises(lambda m: m._check_value(False))],
    "_check_type": [_raises(lambda m: m._check_type(False))],
    "_check_not_implemented": [_raises(lambda m: m._check_not_implemented(False))],
    "_check_with": [_raises(lambda m: m._check_with(IndexError, False, lambda: "no"))],
    "_check_is_size": [lambda m: m._check_is_size(2), _raises(lambda m: m._check_is_size(-1))],
    "_check_tensor_all": [
        lambda m: m._check_tensor_all(m.ones(2) > 0),
        _raises(lambda m: m._check_tensor_all(m.ones(2) < 0)),
    ],
    "_check_tensor_all_with": [
        _raises(lambda m: m._check_tensor_all_with(IndexError, m.ones(2) < 0))
    ],
    "_assert_async": [
        lambda m: m._assert_async(m.tensor(True)),
        _raises(lambda m: m._assert_async(m.tensor(False), "no")),
    ],
    "is_inference_mode_enabled": [lambda m: _inside(m)],
    "typename": [
        lambda m: m.typename(m.ones(2, dtype=m.int64)).split(".")[-1],
        lambda m: m.typename(3),
        lambda m: m.typename(np.float32),
    ],
    "get_autocast_dtype": [lambda m: str(m.get_autocast_dtype("cpu")).split(".")[-1]],
    "is_autocast_available": [lambda m: m.amp.is_autocast_available("cuda")],
    "is_autocast_cpu_enabled": [lambda m: m.is_autocast_cpu_enabled()],
    "get_deterministic_debug_mode": [lambda m: m.get_deterministic_debug_mode()],
    "get_float32_matmul_precision": [lambda m: m.get_float32_matmul_precision()],
    "annotate": [lambda m: m.jit.annotate(int, 3)],
    "isinstance": [
        lambda m: m.jit.isinstance([1, 2], list[int]),
        lambda m: m.jit.isinstance({"a": 1}, dict[str, str]),
        lambda m: m.jit.isinstance((1, "a"), tuple[int, str]),
    ],
    **{name: [lambda m, n=name: _unsigned(m, n)] for name in ("uint16", "uint32", "uint64")},
    "grouped_mm": [
        lambda m: _grouped(m, (6, 4), (3, 4, 8), [1, 4, 6]),
        lambda m: _grouped(m, (2, 3, 4), (4, 8), [3, 8]),
        lambda m: _grouped(m, (3, 4), (4, 8), [1, 4]),
    ],
    "broadcast_all": [
        lambda m: m.distributions.utils.broadcast_all(m.ones(2, 1), 3, m.zeros(3)),
        lambda m: m.distributions.utils.broadcast_all(1, 2.5),
    ],
    "_sum_rightmost": [lambda m: m.distributions.utils._sum_rightmost(m.ones(2, 3, 4), 2)],
    "LogisticNormal": [_logistic],
    "get_worker_info": [lambda m: m.utils.data.get_worker_info()],
}


def _unsigned(m: Any, name: str) -> Any:
    """Values of a wide unsigned dtype, cast and compared; their operands."""
    kind = getattr(m, name)
    x = m.tensor([1, 2, 300], dtype=kind)
    small = m.tensor([1.5, 2.5]).to(kind)
    met = m.promote_types(kind, m.float32)
    return x.to(m.int64), small.to(m.float32), str(met).split(".")[-1], m.iinfo(kind).max


def _inside(m: Any) -> list[bool]:
    found = [m.is_inference_mode_enabled()]
    with m.no_grad():
        found.append(m.is_inference_mode_enabled())
    with m.inference_mode():
        found.append(m.is_inference_mode_enabled())
        with m.inference_mode(False):
            found.append(m.is_inference_mode_enabled())
    return [*found, m.is_inference_mode_enabled()]


NOT_COMPARED = dict.fromkeys(
    sorted({row.names[0] for row in ROWS if row.torch is not None} - SAMPLES.keys()),
    "asks a machine, marks code or refuses: tests/unit/compat",
)
