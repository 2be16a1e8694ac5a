"""The backward pass over the tape."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from oneflow.autograd.replay import replay
from oneflow.core.config import current_config
from oneflow.core.dispatch import call, current_mode
from oneflow.core.errors import AutogradError
from oneflow.core.op import find_op
from oneflow.ops.shape import reshape
from oneflow.tensor.grad_mode import set_grad_enabled, state
from oneflow.tensor.tape import GradNode, OpNode
from oneflow.tensor.tensor import Tensor, alias, check_replaced

_number = attrgetter("number")


class Pass:
    """One backward pass.

    targets: the tensors whose gradients are asked for; None: add to `.grad` of all leaves.
    """

    def __init__(
        self, targets: Sequence[Tensor] | None, retain_graph: bool, create_graph: bool
    ) -> None:
        self.retain_graph = retain_graph
        self.create_graph = create_graph
        mode = current_mode()
        self.may_replay = mode.replays and not create_graph
        self.note = mode.note_kernels
        self.announce = mode.differentiate
        self.targets = None if targets is None else {_key(t) for t in targets}
        self.found: dict[tuple[int, int], Tensor] = {}
        self.buffers: dict[GradNode, list[Any]] = {}
        self.leaf_grads: dict[int, Any] = {}
        self.leaf_uses: dict[int, int] = {}
        self.awaited: dict[tuple[GradNode, int], int] = {}
        self.leads: dict[GradNode, bool] = {}
        self.met: set[GradNode] = set()
        # Arrays that somebody else holds or may hold: a leaf that gets one of them gets a copy.
        self.held: set[int] = set()

    def run(self, roots: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        nodes = self._reachable([r._grad_fn for r in roots if r._grad_fn is not None])
        if current_config().debug:
            from oneflow.autograd.drawing import write_pass

            write_pass(nodes, is_backward=self.targets is None)
        for root in roots:
            # Waits where an asyncs.thread computes it; what it was computed of is then there, too.
            _ = root._array
            if root._grad_fn is None:
                self.leaf_uses[id(root)] = self.leaf_uses.get(id(root), 0) + 1
            else:
                self._await(root._grad_fn, root._out_index)
        with set_grad_enabled(self.create_graph):
            for root, grad in zip(roots, grads, strict=True):
                self.held.add(id(grad._array))
                edge = (root, -1) if root._grad_fn is None else (root._grad_fn, root._out_index)
                self._send(edge, grad)
            for node in nodes:
                self._visit(node)

    def _reachable(self, starts: list[GradNode]) -> list[GradNode]:
        """All nodes below `starts`, later ones first; counts how often each leaf is used."""
        seen = set(starts)
        stack = list(seen)
        uses = self.leaf_uses
        while stack:
            for edge in stack.pop().edges:
                if edge is None:
                    continue
                target, index = edge
                if index < 0:
                    uses[id(target)] = uses.get(id(target), 0) + 1
                    continue
                if target.on_arrival is not None:
                    self._await(target, index)
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        self.met = seen
        nodes = sorted(seen, key=_number, reverse=True)
        if self.targets is not None:
            for node in reversed(nodes):
                self.leads[node] = any(e is not None and self._is_wanted(e) for e in node.edges)
        return nodes

    def has_met(self, target: Tensor) -> bool:
        """Was the target among the tensors from which the roots were computed?"""
        node = target._grad_fn
        return id(target) in self.leaf_uses if node is None else node in self.met

    def _await(self, node: GradNode, index: int) -> None:
        """Counts one more gradient that will come for an output, where the node wants to know."""
        if node.on_arrival is not None:
            self.awaited[node, index] = self.awaited.get((node, index), 0) + 1

    def _is_wanted(self, edge: tuple[Any, int]) -> bool:
        """Whether the gradient of that edge leads to a target."""
        if self.targets is None:
            return True
        return (id(edge[0]), edge[1]) in self.targets or (edge[1] >= 0 and self.leads[edge[0]])

    def _visit(self, node: GradNode) -> None:
        grads = self.buffers.pop(node, None)
        edges = node.edges
        if self.targets is None:
            wanted = [e is not None for e in edges]
        else:
            wanted = [e is not None and self._is_wanted(e) for e in edges]
        results: Sequence[Any] = ()
        if grads is not None:
            if node._hooks or node._retained or self.targets is not None:
                self._observe(node, grads)
            if True in wanted:
                results = self._gradients(node, grads, wanted)
        count = len(results)
        for i, edge in enumerate(edges):
            if edge is not None:
                self._send(edge, results[i] if wanted[i] and i < count else None)

    def _gradients(self, node: GradNode, grads: list[Any], wanted: list[bool]) -> Sequence[Any]:
        if node.released and not node.can_run_again():
            raise AutogradError(
                f"Trying to backward through the graph a second time at {node.name()}, but the "
                "buffers have already been freed. Please specify retain_graph=True when calling "
                "backward or autograd.grad the first time."
            )
        if self.announce is not None:
            self.announce(node.number)
        results = None
        if self.create_graph:
            return self._recorded(node, grads, wanted)
        if self.may_replay and node.__class__ is OpNode:
            results = replay(node, grads, wanted, self.note)
        if results is None:
            results = _made(node, grads, wanted)
        if not self.retain_graph:
            node.release()
        return results

    def _recorded(self, node: GradNode, grads: list[Any], wanted: list[bool]) -> Sequence[Any]:
        """Compute the gradients, recorded: ops without a gradient then refuse another pass."""
        outer, state.differentiating = state.differentiating, node.name()
        try:
            if isinstance(node, OpNode) and node.op.written is not None:
                return _written(node, grads, wanted)
            return _made(node, grads, wanted)
        finally:
            state.differentiating = outer

    def _observe(self, node: GradNode, grads: list[Any]) -> None:
        """Hooks of the node's outputs, kept gradients, and targets that are no leaves."""
        for index, grad in enumerate(grads):
            if grad is None:
                continue
            if node._hooks and index in node._hooks:
                grad = grads[index] = run_hooks(node._hooks[index], grad)
            if node._retained and index in node._retained:
                x = node._retained[index]()
                if x is not None:
                    known = x._grad
                    if known is not None:
                        x.grad = _add(known, grad)
                    else:
                        x.grad = grad if self.create_graph else self._own(grad)
                    self.held.add(id(grad._array))
            key = (id(node), index)
            if self.targets is not None and key in self.targets:
                self.held.add(id(grad._array))
                self.found[key] = grad

    def _send(self, edge: tuple[Any, int], grad: Tensor | None) -> None:
        target, index = edge
        if index >= 0:
            if grad is not None:
                buffer = self.buffers.get(target)
                if buffer is None:
                    buffer = self.buffers[target] = [None] * target.num_outputs
                buffer[index] = grad if buffer[index] is None else _add(buffer[index], grad)
            if target.on_arrival is not None:
                self._arrived(target, index)
            return
        key = id(target)
        left = self.leaf_uses[key] = self.leaf_uses[key] - 1
        if self.leaf_grads and (known := self.leaf_grads.pop(key, None)) is not None:
            grad = known if grad is None else _add(known, grad)
        if grad is None:
            return
        if left == 0:
            self._arrive(target, grad)
        else:
            self.leaf_grads[key] = grad

    def _arrived(self, node: GradNode, index: int) -> None:
        self.awaited[node, index] -= 1
        if self.awaited[node, index] == 0 and node.on_arrival is not None:
            grads = self.buffers.get(node)
            node.on_arrival(index, None if grads is None else grads[index])

    def _arrive(self, leaf: Tensor, grad: Tensor) -> None:
        """The whole gradient of a leaf is known."""
        more = leaf._extra
        if more is not None and more.hooks:
            grad = run_hooks(more.hooks, grad)
        if self.targets is not None:
            if (id(leaf), -1) in self.targets:
                self.found[(id(leaf), -1)] = grad
            return
        self.accumulate(leaf, grad)
        if more is not None and more.post_accumulate:
            run_post_hooks(leaf)

    def accumulate(self, leaf: Tensor, grad: Tensor) -> None:
        """Add to the `.grad` of a tensor."""
        known = leaf._grad
        if known is None:
            leaf._grad = grad if self.create_graph else self._own(grad)
        elif self.create_graph or not _same_layout(known, grad):
            leaf._grad = _add(known, grad)
        else:
            array = known._array
            array += grad._array
            known._version[0] += 1

    def _own(self, grad: Tensor) -> Tensor:
        """`grad` in memory nobody else has: users scale and clip gradients in place."""
        array = grad._array
        if array is not None and (id(array) in self.held or array.base is not None):
            grad = call(find_op("copy"), grad)
            array = grad._array
        self.held.add(id(array))
        return grad if grad._grad_fn is None else alias(grad)


def _made(node: GradNode, grads: list[Any], wanted: list[bool]) -> list[Any]:
    """The gradients by the node's own rule."""
    results: list[Any] = list(node.gradients(grads, wanted))[: len(wanted)]
    # An entry may be a function that reads what was saved: ask before it is released.
    for i, result in enumerate(results):
        if wanted[i] and result is not None and not isinstance(result, Tensor):
            results[i] = result()
    return results


def _written(node: OpNode, grads: list[Any], wanted: list[bool]) -> list[Any]:
    """The gradients of the op as it is written with others, in a pass of its own."""
    written = node.op.written
    assert written is not None
    # Views of the inputs: one input may have been computed from another.
    inputs = [
        reshape(x, shape=x.meta.shape) if is_wanted else x
        for x, is_wanted in zip(node.given(), wanted, strict=True)
    ]
    made = written(*inputs, **node.attrs)
    outs = made if isinstance(made, tuple) else (made,)
    pairs = [(y, g) for y, g in zip(outs, grads, strict=False) if g is not None]
    targets = [x for x, is_wanted in zip(inputs, wanted, strict=True) if is_wanted]
    work = Pass(targets, True, True)
    work.run([y for y, _ in pairs], [g for _, g in pairs])
    return [
        work.found.get(_key(x)) if is_wanted else None
        for x, is_wanted in zip(inputs, wanted, strict=True)
    ]


def run_hooks(hooks: dict[int, Any], grad: Tensor) -> Tensor:
    for hook in list(hooks.values()):
        replaced = hook(grad)
        if replaced is not None:
            check_replaced(hook, grad, replaced)
            grad = replaced
    return grad


def run_post_hooks(leaf: Tensor) -> None:
    """Call the hooks that wait for `.grad` of a leaf to be added to."""
    for hook in list(leaf._extra.post_accumulate.values()) if leaf._extra is not None else ():
        replaced = hook(leaf.grad)  # type: ignore[arg-type]
        if replaced is not None:
            leaf.grad = replaced


def _key(t: Tensor) -> tuple[int, int]:
    return (id(t), -1) if t._grad_fn is None else (id(t._grad_fn), t._out_index)


def _same_layout(a: Tensor, b: Tensor) -> bool:
    """May `b` be added into `a` in place?"""
    if a._array is None or b._array is None or a._grad_fn is not None:
        return False
    if a.meta is not b.meta and a.meta != b.meta:
        return False
    is_global = a._placement is not None or b._placement is not None
    if is_global and (a._placement, a._sbp) != (b._placement, b._sbp):
        return False
    return type(a._array) is type(b._array) and _may_be_written(a._array)


def _may_be_written(array: Any) -> bool:
    """Not if elements share memory. NumPy says so; CuPy does not, but expanded arrays have gaps."""
    flags = array.flags
    return bool(getattr(flags, "writeable", flags.c_contiguous))


def _add(a: Tensor, b: Tensor) -> Tensor:
    return call(find_op("add"), a, b)  # type: ignore[no-any-return]
