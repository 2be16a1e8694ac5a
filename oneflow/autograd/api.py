"""backward and grad, as users call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from oneflow.autograd.engine import Pass, _key
from oneflow.core.dispatch import current_mode
from oneflow.core.errors import AutogradError, ShapeError
from oneflow.core.operand import Tensors
from oneflow.ops.cast import cast
from oneflow.ops.concat import concat
from oneflow.ops.shape import reshape
from oneflow.tensor.alike import filled_like
from oneflow.tensor.tensor import Tensor


def backward(
    tensors: Tensors,
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> None:
    """Adds to `.grad` of every leaf below `tensors` the sum of d tensor / d leaf, weighted by
    `grad_tensors`.
    """
    roots = _as_list(tensors)
    grads = _root_grads(roots, grad_tensors)
    work = Pass(None, bool(retain_graph) or create_graph, create_graph)
    if work.may_replay:
        work.run(roots, grads)
        return
    mode = current_mode()
    if mode.scale_gradient is not None:
        grads = [mode.scale_gradient(g) for g in grads]
    with mode.backward_pass():
        work.run(roots, grads)


def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
    is_grads_batched: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of `outputs` with respect to `inputs`, without touching any `.grad`.

    is_grads_batched: `grad_outputs` has one more dim in front; one pass is run per row, the results
    are stacked. Raises AutogradError for an input that the outputs do not depend on, unless
    allow_unused (then None).
    """
    if is_grads_batched:
        return _batched_grad(outputs, inputs, grad_outputs, create_graph, allow_unused)
    roots, targets = _as_list(outputs), _as_list(inputs)
    for t in targets:
        t._renew()
        if not t._requires_grad:
            raise AutogradError("One of the differentiated Tensors does not require grad")
    keep = create_graph if retain_graph is None else bool(retain_graph) or create_graph
    work = Pass(targets, keep, create_graph)
    with current_mode().backward_pass():
        work.run(roots, _root_grads(roots, grad_outputs))
    found = tuple(work.found.get(_key(t)) for t in targets)
    if not allow_unused and any(g is None for g in found):
        raise AutogradError(
            "One of the differentiated Tensors appears to not have been used in the graph. "
            "Set allow_unused=True if this is the desired behavior."
        )
    return found


def _batched_grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Tensor | Sequence[Tensor | None] | None,
    create_graph: bool,
    allow_unused: bool,
) -> tuple[Tensor | None, ...]:
    batches = [] if grad_outputs is None else _as_list(grad_outputs)
    counts = {g.meta.shape[0] for g in batches if g is not None}
    if len(counts) != 1:
        raise AutogradError(
            "grad: is_grads_batched needs grad_outputs with one more dim in front, of one size; "
            f"got sizes {sorted(counts)}"
        )
    rows = [
        grad(
            outputs,
            inputs,
            [None if g is None else g[i] for g in batches],
            True,
            create_graph,
            allow_unused,
        )
        for i in range(counts.pop())
    ]
    return tuple(
        None if column[0] is None else stacked(column) for column in zip(*rows, strict=True)
    )


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one type side by side in a new first dim."""
    return concat(*[reshape(x, shape=(1, *x.meta.shape)) for x in tensors], dim=0)


@overload
def _as_list(tensors: Tensors) -> list[Tensor]: ...
@overload
def _as_list(tensors: Tensor | Sequence[Tensor | None]) -> list[Tensor | None]: ...
def _as_list(tensors: Tensor | Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _root_grads(
    roots: list[Tensor], given: Tensor | Sequence[Tensor | None] | None
) -> list[Tensor]:
    grads = [None] * len(roots) if given is None else _as_list(given)
    if len(grads) != len(roots):
        raise AutogradError(f"got {len(roots)} tensors and {len(grads)} gradients")
    return [_root_grad(r, g) for r, g in zip(roots, grads, strict=True)]


def _root_grad(root: Tensor, given: Tensor | None) -> Tensor:
    root._renew()
    if not root._requires_grad:
        raise AutogradError(
            f"element 0 of tensors does not require grad and does not have a grad_fn: {root.meta} "
            "was not computed from any tensor with requires_grad=True"
        )
    if given is not None:
        if given.meta.shape != root.meta.shape:
            raise ShapeError(
                f"backward: the gradient {given.meta} must have the shape of the tensor {root.meta}"
            )
        return given if given.meta.dtype is root.meta.dtype else cast(given, dtype=root.meta.dtype)
    if root.meta.numel != 1:
        raise AutogradError(
            "grad can be implicitly created only for scalar outputs; "
            f"this one is {root.meta}: give backward() a gradient of that shape"
        )
    return filled_like(root, 1)
