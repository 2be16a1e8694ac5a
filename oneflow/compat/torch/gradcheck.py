"""`torch.autograd.gradcheck` and `gradgradcheck`: gradients against differences of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oneflow.autograd.api import grad
from oneflow.core.dtype import float64
from oneflow.core.errors import ArgumentError, AutogradError
from oneflow.functional.creation import eye, randn
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.grad_mode import enable_grad
from oneflow.tensor.tensor import Tensor


class GradcheckError(AutogradError):
    """A gradient that is not the slope of its function."""


def _tuple(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Return whether the gradient of every output for every input that requires one is the slope
    of `func`, by central differences of `eps`; both are written as float64 Jacobians.

    check_batched_grad: also whether one backward pass for all elements gives the same.

    Raises GradcheckError if it is not, unless raise_exception=False; ArgumentError if no input
    requires a gradient. Backward passes alone are checked: the other flags change nothing.
    """
    given = _tuple(inputs)
    watched = [i for i, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]
    if not watched:
        raise ArgumentError("gradcheck expects at least one input tensor to require a gradient")
    try:
        for at in watched:
            _check(func, given, at, eps, atol, rtol, nondet_tol)
            if check_batched_grad:
                _check_batched(func, given, at)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _outputs(func: Callable[..., Any], given: Sequence[Any]) -> list[Tensor]:
    return [y for y in _tuple(func(*given)) if isinstance(y, Tensor) and y.is_floating_point()]


def _check(
    func: Callable[..., Any],
    given: tuple[Any, ...],
    at: int,
    eps: float,
    atol: float,
    rtol: float,
    nondet_tol: float,
) -> None:
    """Compare the Jacobians for one input."""
    numeric = _slopes(func, given, at, eps)
    analytic, again = (_jacobians(func, given, at) for _ in range(2))
    for number, (slope, found, second) in enumerate(zip(numeric, analytic, again, strict=True)):
        if np.abs(found - second).max(initial=0.0) > nondet_tol:
            raise GradcheckError(
                f"gradcheck: two backward passes differ for output {number} with respect to input "
                f"{at} by {np.abs(found - second).max():.3g}"
            )
        if not np.allclose(found, slope, rtol, atol):
            raise GradcheckError(
                f"Jacobian mismatch for output {number} with respect to input {at},\n"
                f"numerical: {slope}\nanalytical: {found}"
            )


def _slopes(
    func: Callable[..., Any], given: tuple[Any, ...], at: int, eps: float
) -> list[np.ndarray[Any, Any]]:
    """Return the Jacobian of each output, (elements of the input, of the output)."""
    x = given[at].detach()
    columns: list[list[np.ndarray[Any, Any]]] = []
    for place in range(x.numel()):
        ends = []
        for step in (eps, -eps):
            moved = x.clone()
            moved.reshape(-1)[place] += step
            moved = moved.requires_grad_()  # a function may ask for it
            args = (*given[:at], moved, *given[at + 1 :])
            ends.append([y.detach().double().numpy().ravel() for y in _outputs(func, args)])
        columns.append([(up - down) / (2 * eps) for up, down in zip(*ends, strict=True)])
    count = len(_outputs(func, given))
    return [
        np.stack([c[i] for c in columns]) if columns else np.zeros((0, 0)) for i in range(count)
    ]


def _jacobians(
    func: Callable[..., Any], given: tuple[Any, ...], at: int
) -> list[np.ndarray[Any, Any]]:
    with enable_grad():
        found = []
        for y in _outputs(func, given):
            rows = np.zeros((given[at].numel(), y.numel()))
            for place in range(y.numel() if y.requires_grad else 0):
                wanted = y.detach() * 0
                wanted.reshape(-1)[place] = 1
                (slope,) = grad(y, [given[at]], wanted, retain_graph=True, allow_unused=True)
                if slope is not None:
                    rows[:, place] = slope.detach().double().numpy().ravel()
            found.append(rows)
    return found


def _check_batched(func: Callable[..., Any], given: tuple[Any, ...], at: int) -> None:
    """Compare the gradients of all elements of an output with those of a pass for all of them."""
    with enable_grad():
        outputs = _outputs(func, given)
        for number, (y, want) in enumerate(zip(outputs, _jacobians(func, given, at), strict=True)):
            if not y.requires_grad or not y.numel():
                continue
            rows = eye(y.numel(), dtype=y.dtype).reshape(y.numel(), *y.shape)
            (slope,) = grad(y, [given[at]], rows, allow_unused=True, is_grads_batched=True)
            found = want * 0 if slope is None else slope.detach().double().numpy()
            if not np.allclose(found.reshape(y.numel(), -1).T, want):
                raise GradcheckError(
                    f"gradcheck: a batched backward pass for output {number} with respect to input "
                    f"{at} differs from passes for one element after the other"
                )


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    grad_outputs: Tensor | Sequence[Tensor] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Return whether second derivatives are right: `gradcheck` of the gradient of `func`.

    grad_outputs: the gradients of the outputs; random numbers by default.
    """
    given = _tuple(inputs)
    with enable_grad():
        made = _outputs(func, given)
    starts = (
        [randn(*y.shape, dtype=float64, **layout_of(y)).to(y.dtype) for y in made]
        if grad_outputs is None
        else [x.detach() for x in _tuple(grad_outputs)]
    )
    starts = [x.requires_grad_() for x in starts]
    watched = [i for i, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]

    def slopes(*args: Tensor) -> Any:
        own, begins = args[: len(given)], args[len(given) :]
        with enable_grad():
            ys = _outputs(func, own)
            return grad(
                ys, [own[i] for i in watched], list(begins), create_graph=True, allow_unused=True
            )

    return gradcheck(
        slopes,
        (*given, *starts),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_batched_grad=check_batched_grad,
    )
