"""`torch.testing`: comparing tensors in tests, and making them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DType, bool_, dtype_of
from oneflow.core.errors import ArgumentError
from oneflow.functional.from_data import tensor
from oneflow.tensor.tensor import Tensor

__all__ = ["assert_allclose", "assert_close", "make_tensor"]

TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}
"""dtype -> rtol, atol; zero for all others."""


def assert_close(
    actual: object,
    expected: object,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:
    """Raise AssertionError unless tensors, numbers, or sequences and mappings of them, are equal
    within |actual - expected| <= atol + rtol |expected|. rtol, atol: both or neither; by default
    those of PyTorch for the dtype.
    """
    if (rtol is None) != (atol is None):
        raise ArgumentError(f"assert_close: give both rtol and atol or neither, got {rtol}, {atol}")
    flags = (equal_nan, check_device, check_dtype, check_stride)
    found = _difference(actual, expected, (rtol, atol), flags, "")
    if found:
        raise AssertionError(msg(found) if callable(msg) else msg or found)


def assert_allclose(
    actual: object,
    expected: object,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    msg: str = "",
) -> None:
    """Raise AssertionError unless both are close: `assert_close` that takes any dtype."""
    assert_close(
        actual,
        expected,
        rtol=rtol,
        atol=atol,
        equal_nan=equal_nan,
        check_device=True,
        check_dtype=False,
        msg=msg or None,
    )


def _difference(
    a: object, b: object, given: tuple[float | None, float | None], flags: tuple[bool, ...], at: str
) -> str:
    """Return the first difference in words; "" if there is none."""
    where = f"\n\nThe failure occurred for item {at}" if at else ""
    if isinstance(b, Mapping) and isinstance(a, Mapping):
        if a.keys() != b.keys():
            return f"The keys of the mappings do not match: {set(a)} and {set(b)}{where}"
        pairs: Any = ((key, a[key], b[key]) for key in b)
    elif isinstance(a, list | tuple | deque) and isinstance(b, list | tuple | deque):
        if len(a) != len(b):
            return f"The length of the sequences mismatch: {len(a)} != {len(b)}{where}"
        pairs = ((i, x, y) for i, (x, y) in enumerate(zip(a, b, strict=True)))
    else:
        found = _difference_of_two(a, b, given, flags)
        return found and found + where
    return next(
        (d for key, x, y in pairs if (d := _difference(x, y, given, flags, f"{at}[{key!r}]"))), ""
    )


def _difference_of_two(
    a: object, b: object, given: tuple[float | None, float | None], flags: tuple[bool, ...]
) -> str:
    equal_nan, device, dtype, stride = flags
    if a is None or b is None:
        return "" if a is b else f"None mismatch: {a} is not {b}"
    if isinstance(a, Tensor) != isinstance(b, Tensor):
        raise TypeError(f"assert_close: cannot compare {type(a).__name__} with {type(b).__name__}")
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape:
            return f"The values for attribute 'shape' do not match: {a.shape} != {b.shape}."
        if device and a.device != b.device:
            return f"The values for attribute 'device' do not match: {a.device} != {b.device}."
        if dtype and a.dtype is not b.dtype:
            return f"The values for attribute 'dtype' do not match: {a.dtype} != {b.dtype}."
        if stride and a.stride() != b.stride():
            return f"The values for attribute 'stride()' do not match: {a.stride()}, {b.stride()}."
    x, y = _array(a), _array(b)
    rtol, atol = given
    if rtol is None or atol is None:
        rtol, atol = map(max, *(TOLERANCES.get(_name(v), (0.0, 0.0)) for v in (a, b)))
    with np.errstate(all="ignore"):
        is_near = np.isclose(x, y, rtol, atol, equal_nan=equal_nan)
    if is_near.all():
        return ""
    gap = np.abs(np.where(is_near, 0, x.astype(np.complex128) - y))
    kind = "Tensor-likes" if isinstance(a, Tensor) else "Scalars"
    return (
        f"{kind} are not close!\n\nMismatched elements: {(~is_near).sum()} / {is_near.size}\n"
        f"Greatest absolute difference: {gap.max()} at index "
        f"{tuple(int(i) for i in np.unravel_index(gap.argmax(), gap.shape))} (up to {atol} "
        f"allowed, with rtol {rtol})"
    )


def _array(value: object) -> np.ndarray[Any, Any]:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def _name(value: object) -> str:
    if isinstance(value, Tensor):
        return value.dtype.name
    return str(np.asarray(value).dtype)


def make_tensor(
    *shape: int | Sequence[int],
    dtype: DType,
    device: DeviceLike = "cpu",
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format: object = None,
) -> Tensor:
    """Return random numbers of [low, high): -9 to 9 for floats and signed integers, 0 to 9 for
    uint8, by default. exclude_zero: zeros become the smallest positive number, or 1.
    """
    sizes = [n for one in shape for n in ([one] if isinstance(one, int) else one)]
    kind = dtype_of(dtype)
    rng = np.random.default_rng()
    if kind is bool_:
        values = rng.integers(0, 2, sizes).astype(bool)
    elif kind.is_floating_point or kind.is_complex:
        values = rng.uniform(-9.0 if low is None else low, 9.0 if high is None else high, sizes)
        if kind.is_complex:
            values = values + 1j * rng.permutation(values.ravel()).reshape(sizes)
    else:
        start = (-9 if kind.is_signed else 0) if low is None else int(low)
        values = rng.integers(start, 10 if high is None else int(high), sizes)
    made: Tensor = tensor(values, dtype=kind, device=device)
    if exclude_zero:
        made[made == 0] = 1
    if noncontiguous and made.numel() > 1:
        made = made.unsqueeze(-1).repeat_interleave(2, -1)[..., 0]
    return made.requires_grad_() if requires_grad else made
