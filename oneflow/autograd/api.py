"""backward and grad, as users call them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import overload

from oneflow.autograd.engine import Pass, _key, run_post_hooks
from oneflow.core.dispatch import current_mode
from oneflow.core.errors import ArgumentError, AutogradError, CallError, ShapeError
from oneflow.core.operand import Tensors
from oneflow.ops.cast import cast
from oneflow.ops.concat import concat
from oneflow.ops.shape import reshape
from oneflow.tensor.creation_like import filled_like
from oneflow.tensor.tensor import Tensor


def backward(
    tensors: Tensors,
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = False,
    create_graph: bool = False,
    *,
    inputs: Tensors | None = None,
) -> None:
    """Adds to `.grad` of every leaf below `tensors` the sum of d tensor / d leaf, weighted by
    `grad_tensors`.

    inputs: the tensors whose `.grad` is added to, instead of all leaves. Raises AutogradError for
    one that needs no gradient, and for none at all.
    """
    roots = _roots(tensors)
    grads = _root_grads(roots, grad_tensors)
    targets = None if inputs is None else _targets(inputs)
    if targets is not None and not targets:
        raise AutogradError("`inputs` argument to `backward()` cannot be empty.")
    check = current_mode().check_backward
    if check is not None:
        check()
    work = Pass(targets, bool(retain_graph) or create_graph, create_graph)
    if work.may_replay and work.note is None:
        work.run(roots, grads)
    else:
        mode = current_mode()
        if mode.scale_gradient is not None:
            grads = list(map(mode.scale_gradient, grads, roots))
        with mode.backward_pass():
            work.run(roots, grads)
    for target in targets or ():
        if (found := work.found.pop(_key(target), None)) is not None:
            work.accumulate(target, found)
            run_post_hooks(target)


def _targets(inputs: Tensors) -> list[Tensor]:
    targets = _roots(inputs)
    for t in targets:
        t._renew()
        if not t._requires_grad:
            raise AutogradError("One of the differentiated Tensors does not require grad")
    return targets


def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    *,
    materialize_grads: bool = False,
    only_inputs: bool = True,
) -> tuple[Tensor | None, ...]:
    """The gradients of `outputs` with respect to `inputs`, without touching any `.grad`.

    is_grads_batched: `grad_outputs` has one more dim in front, and so have the results: one pass
    computes them for all rows. materialize_grads: zeros for an input that the outputs do not depend
    on. only_inputs: accepted; `backward()` adds to `.grad`.
    Raises AutogradError for an input that the outputs do not depend on, unless allow_unused (then
    None) or materialize_grads.
    """
    if materialize_grads and allow_unused is False:
        raise ArgumentError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: "
            "allow_unused=False."
        )
    targets = _targets(inputs)
    may_be_unused = bool(allow_unused) or materialize_grads
    if is_grads_batched:
        found = _batched_grad(outputs, targets, grad_outputs, create_graph, may_be_unused)
    else:
        keep = create_graph if retain_graph is None else bool(retain_graph) or create_graph
        roots = _roots(outputs)
        work = Pass(targets, keep, create_graph)
        with current_mode().backward_pass():
            work.run(roots, _root_grads(roots, grad_outputs))
        found = tuple(_found(work, t) for t in targets)
    if not may_be_unused and any(g is None for g in found):
        raise AutogradError(
            "One of the differentiated Tensors appears to not have been used in the graph. "
            "Set allow_unused=True if this is the desired behavior."
        )
    if materialize_grads:
        return tuple(
            filled_like(t, 0) if g is None else g for t, g in zip(targets, found, strict=True)
        )
    return found


def _found(work: Pass, target: Tensor) -> Tensor | None:
    """The gradient of a target; zeros where it was used by ops of slope zero alone, as the second
    derivative of relu is.
    """
    found = work.found.get(_key(target))
    return filled_like(target, 0) if found is None and work.has_met(target) else found


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
            "grad: If `is_grads_batched=True`, we interpret the first dimension of each "
            "grad_output as the batch dimension, which must be the same for all; got sizes "
            f"{sorted(counts)}"
        )
    batching = importlib.import_module("oneflow.tensor.batching.mode")  # few programs need it
    with batching.batching(counts.pop(), "different") as mode:
        rows = [None if g is None else mode.enter_samples(g) for g in batches]
        found = grad(outputs, inputs, rows, True, create_graph, allow_unused)
        return tuple(None if g is None else mode.split_whole(g) for g in found)


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one type side by side in a new first dim."""
    return concat(*[reshape(x, shape=(1, *x.meta.shape)) for x in tensors], dim=0)


@overload
def _as_list(tensors: Tensors) -> list[Tensor]: ...
@overload
def _as_list(tensors: Tensor | Sequence[Tensor | None]) -> list[Tensor | None]: ...
def _as_list(tensors: Tensor | Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    if isinstance(tensors, Tensor):
        return [tensors]
    if isinstance(tensors, str) or not isinstance(tensors, Iterable):
        raise CallError(f"expected a Tensor or a tuple of Tensors, got {type(tensors).__name__}")
    return list(tensors)


def _roots(tensors: Tensors) -> list[Tensor]:
    """The tensors to go back from, or to. Raises CallError for anything else."""
    if tensors.__class__ is Tensor:
        return [tensors]
    found = _as_list(tensors)
    for place, x in enumerate(found):
        if not isinstance(x, Tensor):
            raise CallError(f"expected Tensor as element {place}, but got {type(x).__name__}")
    return found


def _root_grads(
    roots: list[Tensor], given: Tensor | Sequence[Tensor | None] | None
) -> list[Tensor]:
    if given is None:
        grads: list[Tensor | None] = [None] * len(roots)
    elif isinstance(given, (Tensor, Sequence)):
        grads = _as_list(given)
    else:
        raise CallError(f"gradients can be either Tensors or None, but got {type(given).__name__}")
    if len(grads) != len(roots):
        raise AutogradError(f"got {len(roots)} tensors and {len(grads)} gradients")
    return [_root_grad(r, g) for r, g in zip(roots, grads, strict=True)]


def _root_grad(root: Tensor, given: object) -> Tensor:
    if root._extra is not None:
        root._renew()
    if not root._requires_grad:
        raise AutogradError(
            f"element 0 of tensors does not require grad and does not have a grad_fn: {root.meta} "
            "was not computed from any tensor with requires_grad=True"
        )
    if given is not None:
        if not isinstance(given, Tensor):
            raise CallError(
                f"gradients can be either Tensors or None, but got {type(given).__name__}"
            )
        if given.meta.shape != root.meta.shape:
            raise ShapeError(
                f"Mismatch in shape: grad_output[0] has a shape of {given.shape} and output[0] has "
                f"a shape of {root.shape}: backward: the gradient {given.meta} must have the shape "
                f"of the tensor {root.meta}"
            )
        return given if given.meta.dtype is root.meta.dtype else cast(given, dtype=root.meta.dtype)
    if root.meta.numel != 1:
        raise AutogradError(
            "grad can be implicitly created only for scalar outputs; "
            f"this one is {root.meta}: give backward() a gradient of that shape"
        )
    return filled_like(root, 1)
