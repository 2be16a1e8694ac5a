"""`flow.linalg` against PyTorch, in real and complex numbers: values, gradients and gradients of
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import AutogradError, LinAlgError
from tests.parity.values import compare

Shape = tuple[int, ...]
SQUARE: Shape = (2, 3, 3)
SHAPES: dict[str, Shape] = {"square": SQUARE, "tall": (2, 4, 3), "wide": (2, 3, 5)}
ORDERS = ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)


def _even(x: Any) -> Any:
    """A Hermitian matrix."""
    return x + x.mH


def _positive(m: Any, x: Any) -> Any:
    return x @ x.mH + m.eye(3, dtype=x.dtype)


def _svd(m: Any, x: Any) -> Any:
    """Numbers that do not depend on the signs, or angles, of the vectors."""
    u, s, vh = m.linalg.svd(x, full_matrices=False)
    return [s, u.abs(), vh.abs(), u @ vh]


def _eigh(m: Any, x: Any) -> Any:
    w, v = m.linalg.eigh(_even(x))
    return [w, v.abs(), m.linalg.eigvalsh(_even(x), "U")]


def _eig(m: Any, x: Any) -> Any:
    w, v = m.linalg.eig(x)
    return [w, v.abs()]


def _of_every_shape() -> Iterator[tuple[str, Callable[..., Any], list[Shape]]]:
    for kind, shape in SHAPES.items():
        calls: dict[str, Callable[..., Any]] = {
            "qr": lambda m, x: m.linalg.qr(x),
            "svd": _svd,
            "full svd": lambda m, x: m.linalg.svd(x)[1],
            "pinv": lambda m, x: m.linalg.pinv(x),
            "pinv, tolerances": lambda m, x: m.linalg.pinv(x, rtol=m.tensor([0.01, 0.001])),
            "lu": lambda m, x: m.linalg.lu(x),
            "lu_factor": lambda m, x: m.linalg.lu_factor(x),
            "cond": lambda m, x: m.linalg.cond(x),
            "norms": lambda m, x: [m.linalg.matrix_norm(x, p) for p in ORDERS],
            "kept": lambda m, x: [m.linalg.norm(x, p, (2, 0), True) for p in (2, "nuc")],
        }
        yield from ((f"{name}, {kind}", call, [shape]) for name, call in calls.items())
        right = (2, shape[1], 2)
        yield f"lstsq, {kind}", lambda m, x, b: m.linalg.lstsq(x, b).solution, [shape, right]


CALLS: dict[str, tuple[Callable[..., Any], list[Shape]]] = {
    **{name: (call, shapes) for name, call, shapes in _of_every_shape()},
    "complete qr": (lambda m, x: m.linalg.qr(x, "complete"), [(2, 3, 5)]),
    "inv": (lambda m, x: m.linalg.inv(x), [SQUARE]),
    "inv_ex": (lambda m, x: m.linalg.inv_ex(x), [SQUARE]),
    "solve": (lambda m, a, b: m.linalg.solve(a, b), [SQUARE, (2, 3, 2)]),
    "solve, right": (lambda m, a, b: m.linalg.solve(a, b, left=False), [SQUARE, (2, 2, 3)]),
    "solve_ex": (lambda m, a, b: m.linalg.solve_ex(a, b), [SQUARE, (2, 3, 2)]),
    "solve_triangular": (
        lambda m, a, b: m.linalg.solve_triangular(a, b, upper=True, left=False, unitriangular=True),
        [SQUARE, (3, 3)],
    ),
    "det": (lambda m, x: m.linalg.det(x), [SQUARE]),
    "slogdet": (lambda m, x: m.linalg.slogdet(x), [SQUARE]),
    "logdet": (lambda m, x: m.logdet(_positive(m, x)), [SQUARE]),
    "cholesky": (lambda m, x: m.linalg.cholesky(_positive(m, x)), [SQUARE]),
    "cholesky_ex": (lambda m, x: m.linalg.cholesky_ex(_positive(m, x), upper=True), [SQUARE]),
    "cholesky_solve": (
        lambda m, x, b: m.cholesky_solve(b, m.linalg.cholesky(_positive(m, x), upper=True), True),
        [SQUARE, (2, 3, 2)],
    ),
    "cholesky_inverse": (
        lambda m, x: m.cholesky_inverse(m.linalg.cholesky(_positive(m, x))),
        [SQUARE],
    ),
    "eigh": (_eigh, [SQUARE]),
    "hermitian pinv": (lambda m, x: m.linalg.pinv(_even(x), hermitian=True), [SQUARE]),
    "eig": (_eig, [SQUARE]),
    "eigvals": (lambda m, x: m.linalg.eigvals(x), [SQUARE]),
    **{
        f"lu_solve, left={left}, adjoint={adjoint}": (
            lambda m, a, b, left=left, adjoint=adjoint: m.linalg.lu_solve(
                *m.linalg.lu_factor(a), b, left=left, adjoint=adjoint
            ),
            [SQUARE, (2, 3, 3)],
        )
        for left in (True, False)
        for adjoint in (True, False)
    },
    "householder_product": (
        lambda m, a, tau: m.linalg.householder_product(a, tau),
        [(2, 4, 3), (2, 2)],
    ),
    "ormqr": (
        lambda m, a, t, x: m.ormqr(a, t, x, left=False, transpose=True),
        [(2, 4, 3), (2, 3), (2, 2, 4)],
    ),
    "matrix_exp": (lambda m, x: m.linalg.matrix_exp(x), [SQUARE]),
    "tensorinv": (lambda m, x: m.linalg.tensorinv(x, ind=1), [(6, 2, 3)]),
    "tensorsolve": (lambda m, a, b: m.linalg.tensorsolve(a, b, dims=(0,)), [(6, 2, 3), (2, 3)]),
    "vander": (lambda m, x: m.linalg.vander(x), [(3,)]),
    "vecdot": (lambda m, x, y: m.linalg.vecdot(x, y), [(2, 3), (2, 3)]),
    "multi_dot": (lambda m, *x: m.linalg.multi_dot(x), [(2, 3), (3, 4), (4, 2)]),
    "matrix_power": (lambda m, x: m.linalg.matrix_power(x, -3), [SQUARE]),
    "svd of torch": (lambda m, x: (lambda u, s, v: u @ v.mH)(*m.svd(x)), [(2, 4, 3)]),
}


def _flat(value: Any) -> list[Any]:
    return [t for v in value for t in _flat(v)] if isinstance(value, (list, tuple)) else [value]


def _number(m: Any, outs: list[Any]) -> Any:
    """One real number, in which each element of every output has a weight of its own."""
    total = 0.0
    for out in outs:
        if not out.requires_grad:
            continue
        weights = m.tensor(np.linspace(0.5, 1.5, out.numel()).reshape(tuple(out.shape)))
        if out.is_complex():
            total = total + (out.real * weights).sum() + (out.imag**2 * weights).sum()
        else:
            total = total + (out * weights).sum() + (out**2).sum()
    return total


def _sizes(x: Any) -> Any:
    return (x * x.conj()).real if x.is_complex() else x**3


@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_both_gradients_agree_with_torch(
    name: str, is_complex: bool, rng: np.random.Generator
) -> None:
    call, shapes = CALLS[name]
    arrays = [rng.normal(size=s) + (1j * rng.normal(size=s) if is_complex else 0) for s in shapes]
    found = []
    libraries: tuple[Any, ...] = (torch, flow)
    for m in libraries:
        leaves = [m.tensor(a).requires_grad_() for a in arrays]
        outs = _flat(call(m, *leaves))
        firsts = m.autograd.grad(_number(m, outs), leaves, create_graph=True)
        seconds = m.autograd.grad(sum(_sizes(g).sum() for g in firsts), leaves)
        found.append([*outs, *firsts, *seconds])
    for i, (theirs, ours) in enumerate(zip(*found, strict=True)):
        assert tuple(theirs.shape) == tuple(ours.shape), i
        scale = max(1.0, float(theirs.detach().abs().max()))
        np.testing.assert_allclose(
            ours.detach().numpy() / scale,
            theirs.detach().resolve_conj().numpy() / scale,
            rtol=1e-6,
            atol=1e-8,
            err_msg=f"number {i} of outputs and gradients",
        )


@pytest.mark.parametrize("order", [p for p in ORDERS if p not in (2, -2)])
def test_condition_numbers_agree_with_torch(order: Any, rng: np.random.Generator) -> None:
    x = rng.normal(size=SQUARE)
    compare(torch.linalg.cond(torch.tensor(x), order), flow.linalg.cond(flow.tensor(x), order))
    x[1] = 0
    assert flow.linalg.cond(flow.tensor(x), order)[1].item() == math.inf


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
def test_least_squares_give_what_the_driver_gives(driver: str, rng: np.random.Generator) -> None:
    a, b = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 2))
    theirs = torch.linalg.lstsq(torch.tensor(a), torch.tensor(b), driver=driver)
    ours = flow.linalg.lstsq(flow.tensor(a), flow.tensor(b), driver=driver)
    compare(tuple(theirs), tuple(ours))


@pytest.mark.parametrize("size", [1, 2, 3, 6, 70])
@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
def test_symmetric_factors_are_those_of_lapack(
    size: int, hermitian: bool, is_complex: bool, rng: np.random.Generator
) -> None:
    shape = (2, size, size)
    a = rng.normal(size=shape) + (1j * rng.normal(size=shape) if is_complex else 0)
    a = a + (a.conj() if hermitian else a).swapaxes(-1, -2)
    if size > 1:
        a[0] *= 1 - np.eye(size)  # blocks of two
    b = rng.normal(size=(2, size, 3)).astype(a.dtype)
    theirs = torch.linalg.ldl_factor_ex(torch.tensor(a), hermitian=hermitian)
    ours = flow.linalg.ldl_factor_ex(flow.tensor(a), hermitian=hermitian)
    compare(tuple(theirs), tuple(ours))
    x = flow.linalg.ldl_solve(ours.LD, ours.pivots, flow.tensor(b), hermitian=hermitian)
    np.testing.assert_allclose(a @ x.numpy(), b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(70, 70), (40, 80), (80, 40)])
def test_large_matrices_are_factored_by_blocks(shape: Shape, rng: np.random.Generator) -> None:
    a = rng.normal(size=shape)
    compare(
        tuple(torch.linalg.lu_factor_ex(torch.tensor(a))),
        tuple(flow.linalg.lu_factor_ex(flow.tensor(a))),
    )


def test_singular_matrices_are_refused_or_named() -> None:
    x = flow.eye(3).expand(2, 3, 3).clone()
    x[1, 1, 1] = 0
    with pytest.raises(LinAlgError, match=r"linalg.inv: Singular matrix.*float32\[2, 3, 3\]"):
        flow.linalg.inv(x)
    inverse, info = flow.linalg.inv_ex(x)
    assert info.tolist() == [0, 2] and inverse[0].equal(flow.eye(3))
    assert flow.linalg.solve_ex(x, flow.ones(2, 3, 1)).info.tolist() == [0, 2]
    with pytest.raises(LinAlgError, match=r"Batch element 1\).*element 2"):
        flow.linalg.inv_ex(x, check_errors=True)
    low, info = flow.linalg.cholesky_ex(x)
    assert info.tolist() == [0, 2] and low[0].equal(flow.eye(3))
    with pytest.raises(LinAlgError, match="the leading minor of order 2"):
        flow.linalg.cholesky_ex(x, check_errors=True)
    with pytest.raises(LinAlgError, match=r"linalg\.cholesky: "):
        flow.linalg.cholesky(x)
    assert flow.linalg.lu_factor_ex(x).info.tolist() == [0, 2]
    assert flow.linalg.matrix_rank(x).tolist() == [3, 2]


def test_tall_complete_factors_have_no_gradient() -> None:
    x = flow.ones(4, 2, requires_grad=True)
    q, r = flow.linalg.qr(x, "complete")
    assert q.shape == (4, 4) and r.shape == (4, 2)
    with pytest.raises(AutogradError, match="not differentiable when mode='complete'"):
        r.sum().backward()


def test_few_singular_values_of_a_matrix_of_low_rank(rng: np.random.Generator) -> None:
    a = rng.normal(size=(9, 2)) @ rng.normal(size=(2, 7))
    u, s, v = flow.svd_lowrank(flow.tensor(a), q=3)
    np.testing.assert_allclose((u * s @ v.T).numpy(), a, atol=1e-10)
    u, s, v = flow.pca_lowrank(flow.tensor(a.T), q=2)
    np.testing.assert_allclose((u * s @ v.T).numpy(), a.T - a.T.mean(0), atol=1e-10)
