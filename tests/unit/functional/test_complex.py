"""Complex tensors against PyTorch: values, gradients, views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

_drawn = np.random.default_rng(0).normal(size=32)
Z = (_drawn[:12] + 1j * _drawn[12:24]).reshape(3, 4)
W = _drawn[24:28] + 1j * _drawn[28:]

ONE = [
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "sigmoid",
    "square",
    "neg",
    "log2",
    "log10",
    "log1p",
    "expm1",
    "exp2",
    "abs",
    "angle",
    "sgn",
    "real",
    "imag",
    "conj_physical",
]
TWO: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda m, a, b: a + b,
    "sub": lambda m, a, b: b - a,
    "mul": lambda m, a, b: a * b,
    "div": lambda m, a, b: a / b,
    "pow": lambda m, a, b: a**b,
    "matmul": lambda m, a, b: a @ b,
    "numbers": lambda m, a, b: a * (2 - 1j) + b / 1j - 3j,
    "where": lambda m, a, b: m.where(a.real > 0, a, b),
    "cat": lambda m, a, b: m.cat([a, a * b]),
    "sum": lambda m, a, b: (a * b).sum(0),
    "mean": lambda m, a, b: (a * b).mean(),
    "prod": lambda m, a, b: (a * b).prod(1),
    "parts": lambda m, a, b: (a * b).real * b.imag,
    "conj": lambda m, a, b: (a.conj() * b).resolve_conj(),
    "vdot": lambda m, a, b: m.vdot(a[0], b),
    "slices": lambda m, a, b: a[1:, ::2] * b[:2],
    "adjoint": lambda m, a, b: (a.mH @ a).resolve_conj(),
    "real operand": lambda m, a, b: a.abs() * b,
    "pairs": lambda m, a, b: m.view_as_complex(m.view_as_real(a) * 2) * b,
}


def _agree(run: Callable[..., Any], *arrays: Any) -> None:
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    ours = [flow.tensor(a, requires_grad=True) for a in arrays]
    wanted, got = run(torch, *theirs), run(flow, *ours)
    np.testing.assert_allclose(got.detach().numpy(), wanted.detach().numpy(), atol=1e-10)
    assert str(got.dtype).split(".")[-1] == str(wanted.dtype).split(".")[-1]
    for m, out in ((torch, wanted), (flow, got)):
        flat = m.view_as_real(out) if out.is_complex() else out
        count = int(np.prod(flat.shape))
        weight = np.linspace(0.3, 1.7, count).reshape(tuple(flat.shape))
        (flat * m.tensor(weight)).sum().backward()
    for a, b in zip(theirs, ours, strict=True):
        if a.grad is None:
            assert b.grad is None
            continue
        np.testing.assert_allclose(b.grad.numpy(), a.grad.resolve_conj().numpy(), atol=1e-9)


@pytest.mark.parametrize("name", ONE)
def test_a_function_of_complex_numbers_equals_torch(name: str) -> None:
    _agree(lambda m, a: getattr(m, name)(a), Z)


@pytest.mark.parametrize("name", TWO)
def test_an_expression_of_complex_numbers_equals_torch(name: str) -> None:
    _agree(TWO[name], Z, W)


def test_complex_numbers_are_made_of_parts_with_gradients(rng: np.random.Generator) -> None:
    a, b = np.abs(rng.normal(size=(3, 4))), rng.normal(size=(3, 4))
    _agree(lambda m, x, y: m.complex(x, y) * x, a, b)
    _agree(lambda m, x, y: m.polar(x, y), a, b)


def test_parts_are_views() -> None:
    z = flow.tensor(Z)
    z.real.fill_(2.0)
    z.imag[0] = 1.0
    flow.view_as_real(z)[1, 1, 1] = 7.0
    want = Z.copy()
    want.real[...] = 2.0
    want.imag[0] = 1.0
    want.imag[1, 1] = 7.0
    np.testing.assert_array_equal(z.numpy(), want)


def test_dtypes_of_complex_results() -> None:
    x = flow.tensor([1.0, 2.0])
    assert (x * 1j).dtype == flow.complex64 and (x.double() * 1j).dtype == flow.complex128
    assert (flow.tensor([1, 2]) + 1j).dtype == flow.complex64
    assert (flow.tensor([1j]) * x.double()[:1]).dtype == flow.complex128
    with pytest.raises(TypeError, match="imag"):
        flow.imag(x)


@pytest.mark.parametrize("centred", [False, True])
def test_short_windows_go_there_and_back(centred: bool, rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 64))
    window = np.hanning(18)[1:-1]

    def there(m: Any, s: Any) -> Any:
        return m.stft(s, 16, 4, window=m.tensor(window), center=centred, return_complex=True)

    def back(m: Any, s: Any) -> Any:
        return m.istft(there(m, s), 16, 4, window=m.tensor(window), center=True, length=60)

    _agree(there, x)
    if centred:
        _agree(back, x)
        whole = back(flow, flow.tensor(x))
        np.testing.assert_allclose(whole.numpy(), x[:, :60], atol=1e-9)
