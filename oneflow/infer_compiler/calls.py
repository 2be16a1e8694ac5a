"""A compiled FX graph as a function of PyTorch's tensors, which share their memory with ours."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oneflow.infer_compiler.plan import Plan, is_dense
from oneflow.infer_compiler.routes import routes_of
from oneflow.infer_compiler.running import Program
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    import torch.fx

PLANS = 9
"""Plans of a graph, for shapes of its inputs."""


@dataclass(frozen=True)
class Places:
    """The inputs and outputs of a graph that keep their memory from call to call.

    held: positions of inputs that stay where they are: parameters, and values saved by a forward
    pass. saved: positions of outputs that are freed before the next call, as a rule. registers:
    those that plans have lent, by their addresses: of a forward pass and its backward pass.
    """

    held: Collection[int] = ()
    saved: Collection[int] = ()
    registers: dict[int, Any] = field(default_factory=dict)


class Compiled:
    """Calls an FX graph: one plan for each set of shapes, PLANS at most.

    Plans read held inputs in place, and lend their registers for saved outputs; while one of these
    lives on, a second plan copies them. Calls of several threads take turns.
    """

    def __init__(
        self, nodes: Sequence[torch.fx.Node], constants: dict[str, Tensor], places: Places
    ) -> None:
        self._places, saved = places, places.saved
        self._returns_one = not isinstance(nodes[-1].args[0], list | tuple)
        self._routes, computed = routes_of(nodes)
        self._program = Program(nodes, constants, computed)
        lent = [r.made for i, r in enumerate(self._routes) if i in saved and r.made is not None]
        kept = {r.made for i, r in enumerate(self._routes) if i not in saved}
        self._lent = frozenset(lent) - kept
        self.plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._lock = threading.RLock()

    def __call__(self, *args: Any) -> Any:
        made: Sequence[Any] = ()
        if self._program.computed:
            with self._lock:  # from the question whether a plan is free to its run
                made = self._plan_for(args).run(args)
        outputs = [route.follow(args, made) for route in self._routes]
        return outputs[0] if self._returns_one else outputs

    def _plan_for(self, args: Sequence[Any]) -> Plan:
        key = tuple([_kind(x) for x in args])
        plan = self._find((key, True), args, self._lent)
        return plan if plan.is_free else self._find((key, False), args, ())

    def _find(self, key: Hashable, args: Sequence[Any], lent: Collection[int]) -> Plan:
        found = self.plans.get(key)
        if found is None:
            held = [i for i in self._places.held if is_dense(args[i])]
            found = self.plans[key] = Plan(self._program, args, held, lent, self._places.registers)
            if len(self.plans) > PLANS:
                self.plans.popitem(last=False)[1].close()
        self.plans.move_to_end(key)
        return found


def _kind(x: object) -> Hashable:
    """The facts of an input that a plan is made for."""
    if hasattr(x, "stride"):
        tensor: Any = x
        return tensor.shape, tensor.stride(), tensor.dtype
    return type(x), x
