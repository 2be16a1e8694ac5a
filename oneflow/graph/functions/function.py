"""A function of tensors that runs as compiled plans: one forward, and one for its gradients.

The function is traced by an `nn.Graph` once for each kind of call, together with the gradients
of its inputs; the traced graph is cut in two (two_passes.py), and a backward pass through a result
runs the second part. The optimizer stays in the caller's hands, as in eager code.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from oneflow.amp.autocasting import Autocasting
from oneflow.core.dispatch import current_mode
from oneflow.graph.arguments import meta_of
from oneflow.graph.functions.guards import VALUES
from oneflow.graph.functions.plan import FunctionPlan
from oneflow.graph.functions.traces import surroundings
from oneflow.graph.tree import flatten, tensors_of
from oneflow.tensor.gate import Place
from oneflow.tensor.grad_mode import is_grad_enabled
from oneflow.tensor.tensor import Tensor
from oneflow.tensor.views import owner_of


class CompiledFunction:
    """Calls `function`, compiled for the kinds of its arguments.

    A kind is the structure of the arguments with the shapes, dtypes and layouts of tensors, whether
    they need gradients, all else by value or identity, and the modes of the modules that are
    called. `size` plans are kept; the one that was not used for the longest time goes.

    Raises the errors of `function` while it is traced, and GraphError for effects that no plan can
    have; the function itself was then run in part, on tensors without values.
    """

    def __init__(self, function: Callable[..., Any], size: int = 8) -> None:
        self._function, self._size = function, size
        self._plans: OrderedDict[Hashable, list[FunctionPlan]] = OrderedDict()
        self._kinds: dict[FunctionPlan, Hashable] = {}
        """The key of each plan in which objects of one type are alike."""

    def __call__(self, *args: object, **kwargs: object) -> Any:
        given = args, kwargs
        key = self.key(given)
        plan = self.find(key)
        if plan is None:
            kind = self.key(given, by_type=True)
            plan = self.take_over(key, kind, given) or self.add(key, kind, given)
        return plan.run(given)

    def find(self, key: Hashable) -> FunctionPlan | None:
        """The plan for calls of a kind, in the modes of now."""
        for plan in self._plans.get(key, ()):
            if plan.holds():
                self._plans.move_to_end(key)
                return plan
        return None

    def take_over(
        self, key: Hashable, kind: Hashable, given: tuple[Any, ...]
    ) -> FunctionPlan | None:
        """The plan for calls of the same kind with other objects, from now on with those of (args,
        kwargs), such as the cache of another text; None if there is none that can."""
        for old, plans in self._plans.items():
            for plan in plans if old != key else ():
                if self._kinds[plan] == kind and plan.move(given):
                    plans.remove(plan)
                    if not plans:
                        del self._plans[old]
                    self._plans.setdefault(key, []).append(plan)
                    self._plans.move_to_end(key)
                    return plan
        return None

    def key(
        self, given: tuple[Any, ...], places: Sequence[Place] = (), by_type: bool = False
    ) -> Hashable:
        """Facts that are equal for calls of one kind; the modes of modules are told apart later.
        places: of parameters that are among the arguments.  by_type: objects of one type are alike.
        """
        kind = _type_kind if by_type else _kind
        mode = current_mode()
        casts = tuple(mode.dtypes.items()) if isinstance(mode, Autocasting) else ()
        return (
            is_grad_enabled(),
            casts,
            tuple([(path, kind(leaf)) for path, leaf in flatten(given)]),
            tuple([_identity(x) for x in surroundings(self._function)]),
            tuple([(id(table), name) for table, name in places]),
            _alike(tensors_of(given)),
        )

    def forget(self) -> None:
        """Give all plans up."""
        for plans in self._plans.values():
            for plan in plans:
                plan.close()
        self._plans.clear()
        self._kinds.clear()

    def add(
        self,
        key: Hashable,
        kind: Hashable,
        given: tuple[Any, ...],
        places: Sequence[Place] = (),
    ) -> FunctionPlan:
        """Trace and compile for calls like one of (args, kwargs). kind: the key by types.  places:
        see `key`."""
        plan = FunctionPlan(self._function, given, places)
        self._kinds[plan] = kind
        plans = self._plans.setdefault(key, [])
        plans.append(plan)
        self._plans.move_to_end(key)
        while sum(map(len, self._plans.values())) > self._size:
            oldest = next(iter(self._plans))
            left = self._plans[oldest].pop(0)
            left.close()
            del self._kinds[left]
            if not self._plans[oldest]:
                del self._plans[oldest]
        return plan


def _kind(leaf: object) -> Hashable:
    if isinstance(leaf, Tensor):
        return (*meta_of(leaf), leaf._device, leaf.requires_grad)
    return _identity(leaf)


def _type_kind(leaf: object) -> Hashable:
    if isinstance(leaf, (Tensor, *VALUES)):
        return _kind(leaf)
    return id(type(leaf))


def _alike(tensors: list[Tensor]) -> tuple[int, ...]:
    """The first tensor in the memory of each one; () where each has memory of its own."""
    owners = [id(owner_of(x)) for x in tensors]
    return () if len(set(owners)) == len(owners) else tuple(map(owners.index, owners))


def _identity(x: object) -> Hashable:
    if isinstance(x, (float, complex)):
        return type(x), repr(x)  # -0.0 is no 0.0
    return (type(x), x) if isinstance(x, VALUES) else id(x)
