"""The plans of a function: one forward, and one for the backward pass, which results lead to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oneflow.actors.job import Job
from oneflow.core.errors import GraphError
from oneflow.core.graph import LogicalGraph
from oneflow.graph.binding import compile_and_bind
from oneflow.graph.compiling import (
    Built,
    device_index,
    output_tensor,
    randomness_of,
    ranks_that_draw_together,
    trace_graph,
)
from oneflow.graph.functions.backward import BackwardPlan
from oneflow.graph.functions.guards import Guards
from oneflow.graph.functions.likeness import Likeness
from oneflow.graph.functions.traces import (
    Call,
    Detached,
    Given,
    Made,
    WrittenArguments,
    modules_of,
    spec_of_call,
    surroundings,
)
from oneflow.graph.functions.two_passes import cut
from oneflow.graph.layout_assignment import lend, take_layouts
from oneflow.graph.spec import GraphSpec
from oneflow.graph.tree import flatten, map_leaves, map_tensors, tensors_of
from oneflow.tensor.gate import NOTHING, Place
from oneflow.tensor.grad_mode import switches
from oneflow.tensor.tape import record_call
from oneflow.tensor.tensor import Tensor, raw
from oneflow.tensor.views import owner_of, view_of


class FunctionPlan:
    """The plans of one kind of call. places: see `Call`."""

    def __init__(
        self,
        function: Callable[..., Any],
        given: tuple[Any, ...],
        places: Sequence[Place] = (),
    ) -> None:
        self._guards = Guards(function, given)
        spec, call, built = self._traced(Call(function, places), given)
        self.name = spec.name
        trace, passes = built.trace, cut(built.trace.graph, len(call.outputs))
        self._given = _objects(given)
        self._held = [*surroundings(function)]  # an identity in the key stays that of one object
        self._routes, self._targets = call.routes, call.targets
        self._wanted = call.wanted if call.targets else []
        self._variables = trace.variables
        self._index = device_index([*trace.variables.values(), *tensors_of(given)])
        # Traced tensors have histories: all that the plans need of them is kept without.
        self._returned = map_tensors(call.returned, _blank)
        self._outputs = [_blank(y) for y in call.outputs]
        owners = {id(trace.owner(x)): i for i, x in call.lent.items()}
        names = trace.variables.items()
        self._lent = {n: owners[id(x)] for n, x in names if id(x) in owners}
        self._config = spec.job_config()
        self._forward = self._bind(passes.forward, trace.variables)
        self._values = self._forward.bound.plan.graph.outputs
        self._lent_arrays = {n: trace.variables[n]._array for n in self._lent}
        self._backward = BackwardPlan(self.name, passes, trace.variables, self._values, self._bind)
        self._written = _written(passes.forward)
        ranks = ranks_that_draw_together(passes.forward)
        self._randomness = randomness_of(spec, trace.draws.counts, ranks)
        self._modes = built.modes
        self._modes.settle()
        self._switches = switches.count

    def _traced(self, call: Call, given: tuple[Any, ...]) -> tuple[GraphSpec, Call, Built]:
        """The trace of a call; where it overwrites arguments that are in no other's memory, with
        these as variables, which each call of the plan binds anew."""
        spec = spec_of_call(call, given)
        try:
            return spec, call, self._trace(spec, call, given)
        except WrittenArguments as error:
            tensors = tensors_of(given)
            lent = {i: tensors[i] for i in error.positions}
            if call.lent or any(not _can_be_lent(x, tensors, call.function) for x in lent.values()):
                raise
        return self._traced(Call(call.function, call.places, lent), given)

    def _trace(self, spec: GraphSpec, call: Call, given: tuple[Any, ...]) -> Built:
        """Raises GraphError for a function that changes state that it reads."""
        try:
            built = trace_graph(spec, call.build, *given)
            if (change := self._guards.change()) is not None:
                raise GraphError(change)
        except Exception:
            self._guards.restore()
            raise
        self._guards.add(built.trace.called.values())
        return built

    def holds(self) -> bool:
        """Whether the modules are in the modes in which they were traced, and all else that the
        function reads is as it was.
        """
        if not self._guards.hold():
            return False
        if self._switches != switches.count:
            if not self._modes.hold():
                return False
            self._switches = switches.count
        return True

    def move(self, given: tuple[Any, ...]) -> bool:
        """Serve calls with other objects than before, if they have the structure of those: whether
        that is so. Plans without a backward pass can."""
        likeness, objects = Likeness(), _objects(given)
        if self._wanted or not likeness.find(self._given, objects):
            return False
        guards = self._guards.moved(likeness.of)
        pairs = [(name, x, likeness.in_place_of(x)) for name, x in self._variables.items()]
        others = {name: y for name, x, y in pairs if y is not x}
        if not guards.hold():
            return False
        bound = self._forward.bound.plan.graph.variables
        self._forward.rebind({name: lend(x) for name, x in others.items() if name in bound})
        self._variables.update(others)
        self._guards, self._given = guards, objects
        self._routes = [x if isinstance(x, int) else likeness.of(x) for x in self._routes]
        self._returned = map_leaves(self._returned, likeness.of)
        return True

    def close(self) -> None:
        self._backward.close()
        self._forward.close()

    def run(self, given: tuple[Any, ...], behind: Mapping[int, Tensor] = NOTHING.behind) -> Any:
        """The result for such (args, kwargs), with a history if it needs one.

        behind: the tensors that get the gradients of others, by the id of these.
        """
        inputs = tensors_of(given)
        with self._backward.turn:
            made = self._run(inputs, behind)
        routes = iter(self._routes)

        def found(route: int | Detached | Made | Tensor) -> Tensor:
            if isinstance(route, Detached):
                return found(route.source).detach()
            if isinstance(route, Made):
                return route.values.clone()
            if isinstance(route, Given):
                return inputs[route]
            return made[route] if isinstance(route, int) else route

        return map_tensors(self._returned, lambda _: found(next(routes)))

    def _run(self, inputs: list[Tensor], behind: Mapping[int, Tensor]) -> list[Tensor]:
        """The outputs for these arguments."""
        self._backward.give_back_registers()
        feeds = {f"input.{i}": x._array for i, x in enumerate(inputs)}
        if self._lent:
            self._bind_lent(inputs)
        drawn = None if self._randomness is None else self._randomness.now()
        if drawn is not None:
            self._forward.draw(drawn)
        results = self._forward.run(feeds)
        if self._randomness is not None:
            self._randomness.skip_step()
        for name in self._written:
            self._variables[name]._version[0] += 1
        made = [
            output_tensor(y, self._values[i], results.get(i)) for i, y in enumerate(self._outputs)
        ]
        if self._wanted:
            targets = [inputs[t] if isinstance(t, int) else t for t in self._targets]
            targets = [behind.get(id(t), t) for t in targets] if behind else targets
            saved = self._backward.saved(feeds, inputs, made, results, self._wanted, targets, drawn)
            wanted = [made[i] for i in self._wanted]
            record_call(self.name, targets, wanted, saved.gradients)
        return made

    def _bind_lent(self, inputs: list[Tensor]) -> None:
        """Let the plan work in the memory of the arguments that it overwrites."""
        given = {name: inputs[i] for name, i in self._lent.items()}
        others = {n: x for n, x in given.items() if self._lent_arrays[n] is not x._array}
        if others:
            arrays = {name: lend(x) for name, x in others.items()}
            self._forward.rebind(arrays)
            self._lent_arrays.update(arrays)
        self._variables.update(given)

    def _bind(self, graph: LogicalGraph, tensors: dict[str, Tensor]) -> Job:
        variables = {name: tensors[name] for name in graph.variables}
        return compile_and_bind(
            graph, self._config, lambda plan: take_layouts(plan, variables, {}), self._index
        )


def _objects(given: tuple[Any, ...]) -> list[Any]:
    """The arguments that are no tensors."""
    return [x for _, x in flatten(given) if not isinstance(x, Tensor)]


def _blank(x: Tensor) -> Tensor:
    """A tensor of that type in that place, without memory or history."""
    y = raw(x.meta, None, x._device)
    y._placement, y._sbp = x._placement, x._sbp
    return y


def _written(graph: LogicalGraph) -> list[str]:
    """The names of the variables that a graph overwrites."""
    found = graph.variables.items()
    return [name for name, v in found if any(user.overwrites(v) for user in v.users)]


def _can_be_lent(x: Tensor, given: list[Tensor], function: Callable[..., Any]) -> bool:
    """Whether the plan of a function can overwrite an argument where it lies: its memory is all its
    own, and no other argument and nothing around the function shows it.
    """
    if x._placement is not None or x._requires_grad or view_of(x) is not None:
        return False
    near = [y for y in surroundings(function) if isinstance(y, Tensor)]
    held = {id(b) for m in modules_of(function, ()) for b in (*m.buffers(), *m.parameters())}
    return id(x) not in held and sum(owner_of(y) is x for y in (*given, *near)) == 1
