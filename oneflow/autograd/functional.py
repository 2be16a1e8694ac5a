"""Jacobians, Hessians and their products with vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from oneflow.autograd.api import grad, stacked
from oneflow.core.errors import AutogradError
from oneflow.core.operand import Tensors
from oneflow.ops.shape import reshape
from oneflow.tensor.creation_like import filled_like
from oneflow.tensor.grad_mode import enable_grad
from oneflow.tensor.tensor import Tensor

V = TypeVar("V")


def _tuple(x: Tensors) -> tuple[Tensor, ...]:
    return (x,) if isinstance(x, Tensor) else tuple(x)


def _like(x: Tensors, values: tuple[V, ...]) -> V | tuple[V, ...]:
    return values[0] if isinstance(x, Tensor) else values


def _fresh(inputs: Tensors, create_graph: bool) -> tuple[Tensor, ...]:
    """Inputs to differentiate with respect to: with their history if the result is to be
    differentiated again.
    """
    if create_graph:
        return tuple(x if x.requires_grad else x.detach().requires_grad_() for x in _tuple(inputs))
    return tuple(x.detach().requires_grad_() for x in _tuple(inputs))


def _or_zeros(grads: tuple[Tensor | None, ...], like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(filled_like(x, 0) if g is None else g for g, x in zip(grads, like, strict=True))


def _done(results: tuple[Tensor, ...], create_graph: bool) -> tuple[Tensor, ...]:
    return results if create_graph else tuple(r.detach() for r in results)


def _vector(v: Tensors | None, like: tuple[Tensor, ...], who: str) -> tuple[Tensor, ...]:
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise AutogradError(
                f"{who}: the vector v can only be left out where there is one number"
            )
        return (filled_like(like[0], 1),)
    return _tuple(v)


def vjp(
    func: Callable[..., Any],
    inputs: Tensors,
    v: Tensors | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """(func(inputs), v^T J).  v: of the shapes of the outputs."""
    with enable_grad():
        xs = _fresh(inputs, create_graph)
        outputs = func(*xs)
        ys = _tuple(outputs)
        found = grad(
            ys, xs, _vector(v, ys, "vjp"), create_graph=create_graph, allow_unused=not strict
        )
    products = _done(_or_zeros(found, xs), create_graph)
    return _like(outputs, _done(ys, create_graph)), _like(inputs, products)


def jvp(
    func: Callable[..., Any],
    inputs: Tensors,
    v: Tensors | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """(func(inputs), J v) by differentiating v^T J twice.  v: of the shapes of the inputs."""
    with enable_grad():
        xs = _fresh(inputs, create_graph)
        outputs = func(*xs)
        ys = _tuple(outputs)
        dummies = tuple(filled_like(y, 0).requires_grad_() for y in ys)
        back = grad(ys, xs, dummies, create_graph=True, allow_unused=True)
        pairs = [
            (b, w)
            for b, w in zip(back, _vector(v, xs, "jvp"), strict=True)
            if b is not None and b.requires_grad
        ]
        found: tuple[Tensor | None, ...] = (None,) * len(ys)
        if pairs:
            found = grad(
                [b for b, _ in pairs],
                dummies,
                [w for _, w in pairs],
                create_graph=create_graph,
                allow_unused=not strict,
            )
    products = _done(_or_zeros(found, ys), create_graph)
    return _like(outputs, _done(ys, create_graph)), _like(outputs, products)


def jacobian(
    func: Callable[..., Any],
    inputs: Tensors,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """d output / d input, of shape output.shape + input.shape; tuples of them for several outputs
    or inputs.
    """
    with enable_grad():
        xs = _fresh(inputs, create_graph)
        outputs = func(*xs)
        rows = tuple(_rows(y, xs, create_graph, strict) for y in _tuple(outputs))
    columns = tuple(_like(inputs, _done(row, create_graph)) for row in rows)
    return _like(outputs, columns)


def _rows(
    y: Tensor, xs: tuple[Tensor, ...], create_graph: bool, strict: bool
) -> tuple[Tensor, ...]:
    flat = reshape(y, shape=(y.meta.numel,))
    per_element = []
    for i in range(y.numel()):
        found: tuple[Tensor | None, ...] = (None,) * len(xs)
        if flat.requires_grad:
            found = grad(
                flat[i], xs, retain_graph=True, create_graph=create_graph, allow_unused=not strict
            )
        per_element.append(_or_zeros(found, xs))
    return tuple(
        reshape(stacked([e[k] for e in per_element]), shape=(*y.shape, *x.shape))
        for k, x in enumerate(xs)
    )


def hessian(
    func: Callable[..., Tensor],
    inputs: Tensors,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Second derivatives of a function with one number as result: input.shape + input.shape."""

    def gradient(*xs: Tensor) -> Any:
        y = _scalar(func(*xs))
        found = grad(y, xs, create_graph=True, allow_unused=not strict)
        return _like(inputs, _or_zeros(found, xs))

    return jacobian(gradient, inputs, create_graph, strict)


def _scalar(y: Tensor) -> Tensor:
    if y.numel() != 1:
        raise AutogradError(f"a Hessian needs a function with one number as result, got {y.meta}")
    return y


def vhp(
    func: Callable[..., Tensor],
    inputs: Tensors,
    v: Tensors | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """(func(inputs), v^T H).  v: of the shapes of the inputs."""
    with enable_grad():
        xs = _fresh(inputs, create_graph)
        y = _scalar(func(*xs))
        first = grad(y, xs, create_graph=True, allow_unused=not strict)
        pairs = [
            (g, w)
            for g, w in zip(first, _vector(v, xs, "vhp"), strict=True)
            if g is not None and g.requires_grad
        ]
        found: tuple[Tensor | None, ...] = (None,) * len(xs)
        if pairs:
            found = grad(
                [g for g, _ in pairs],
                xs,
                [w for _, w in pairs],
                create_graph=create_graph,
                allow_unused=True,
            )
    products = _done(_or_zeros(found, xs), create_graph)
    return (y if create_graph else y.detach()), _like(inputs, products)


def hvp(
    func: Callable[..., Tensor],
    inputs: Tensors,
    v: Tensors | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """(func(inputs), H v). A Hessian is symmetric, so this is `vhp`."""
    return vhp(func, inputs, v, create_graph, strict)
