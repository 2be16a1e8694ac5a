"""The plans of a function: one forward, and one for the backward pass, which results lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow.actors.job import Job
from oneflow.core.draws import Randomness
from oneflow.core.errors import AutogradError, GraphError
from oneflow.core.graph import LogicalGraph, Value
from oneflow.core.sbp import NdSbp
from oneflow.graph.binding import compile_and_bind
from oneflow.graph.compiling import (
    Built,
    gpu_index,
    output_tensor,
    randomness_of,
    ranks_that_draw_together,
    trace_graph,
)
from oneflow.graph.functions.guards import Guards
from oneflow.graph.functions.traces import Call, Given, spec_of_call, surroundings
from oneflow.graph.functions.two_passes import GRAD, SAVED, Passes, cut
from oneflow.graph.laying_out import take_layouts
from oneflow.graph.spec import GraphSpec
from oneflow.graph.tree import flatten, map_tensors, tensors_of
from oneflow.tensor.devices import array_on
from oneflow.tensor.grad_mode import is_grad_enabled, switches
from oneflow.tensor.tape import Kept, kept, record_call
from oneflow.tensor.tensor import Tensor, raw


class FunctionPlan:
    """The plans of one kind of call."""

    def __init__(self, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
        call = Call(function)
        spec = spec_of_call(call, given)
        self.name = spec.name
        self._guards = Guards(function, given)
        built = self._trace(spec, call, given)
        trace, passes = built.trace, cut(built.trace.graph, len(call.outputs))
        self._held = [x for _, x in flatten(given) if not isinstance(x, Tensor)]
        self._held += surroundings(function)  # an identity in the key stays that of one object
        self._routes, self._targets = call.routes, call.targets
        self._wanted = call.wanted if call.targets else []
        self._variables = trace.variables
        self._index = gpu_index([*trace.variables.values(), *tensors_of(given)])
        # Traced tensors have histories: all that the plans need of them is kept without.
        self._returned = map_tensors(call.returned, _blank)
        self._outputs = [_blank(y) for y in call.outputs]
        self._config = spec.job_config()
        self._forward = self._bind(passes.forward)
        self._backward = _BackwardPass(self, passes)
        self._values = self._forward.bound.plan.graph.outputs
        self._written = _written(passes.forward, trace.variables)
        ranks = ranks_that_draw_together(passes.forward)
        self._randomness = randomness_of(spec, trace.draws.counts, ranks)
        self._modes = built.modes
        self._modes.settle()
        self._switches = switches.count

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

    def close(self) -> None:
        self._forward.close()
        self._backward.close()

    def run(self, given: tuple[Any, ...]) -> Any:
        """The result for such (args, kwargs), with a history if it needs one."""
        inputs = tensors_of(given)
        feeds = {f"input.{i}": x._array for i, x in enumerate(inputs)}
        drawn = None if self._randomness is None else self._randomness.now()
        if drawn is not None:
            self._forward.draw(drawn)
        results = self._forward.run(feeds)
        if self._randomness is not None:
            self._randomness.skip_step()
        for x in self._written:
            x._version[0] += 1
        made = [
            output_tensor(y, self._values[i], results.get(i)) for i, y in enumerate(self._outputs)
        ]
        if self._wanted:
            targets = [inputs[t] if isinstance(t, int) else t for t in self._targets]
            saved = _Saved(
                self._backward, feeds, inputs, made, results, self._wanted, targets, drawn
            )
            wanted = [made[i] for i in self._wanted]
            record_call(self.name, targets, wanted, saved.gradients)
        routes = iter(self._routes)

        def result(_: Tensor) -> Tensor:
            route = next(routes)
            if isinstance(route, Given):
                return inputs[route]
            return made[route] if isinstance(route, int) else route

        return map_tensors(self._returned, result)

    def _bind(self, graph: LogicalGraph) -> Job:
        variables = _variables(graph, self._variables)
        return compile_and_bind(
            graph, self._config, lambda plan: take_layouts(plan, variables, {}), self._index
        )


class _BackwardPass:
    """The second plan, which is compiled when it is first needed.

    saved: see Passes.  inputs: the arguments that it reads, by their position.  variables: the
    captured tensors that it reads.
    """

    def __init__(self, plan: FunctionPlan, passes: Passes) -> None:
        self._plan, self._graph = plan, passes.backward
        self.saved = passes.saved
        names = [str(node.attrs["name"]) for node in passes.backward.of_kind("input")]
        self.inputs = [int(n.partition(".")[2]) for n in names if n.startswith("input.")]
        self.variables = list(_variables(passes.backward, plan._variables).values())
        self._job: Job | None = None
        self._values: dict[int, Value] = {}

    @property
    def name(self) -> str:
        return self._plan.name

    def run(
        self, feeds: dict[str, Any], targets: list[Tensor], drawn: Randomness | None
    ) -> list[Tensor]:
        """The gradients of the targets. drawn: the randomness of the forward pass, whose masks of
        dropout are made again.
        """
        if self._job is None:
            made = self._plan._values
            layouts = {f"{SAVED}{i}": made[k].sbp for i, k in enumerate(self.saved)}
            _lay_out_inputs(self._graph, layouts)
            self._job = self._plan._bind(self._graph)
            self._values = self._job.bound.plan.graph.outputs
        if drawn is not None:
            self._job.draw(drawn)
        results = self._job.run(feeds)
        return [output_tensor(x, self._values[i], results.get(i)) for i, x in enumerate(targets)]

    def close(self) -> None:
        if self._job is not None:
            self._job.close()


class _Saved:
    """Values that a call has left for its backward pass."""

    def __init__(
        self,
        backward: _BackwardPass,
        feeds: dict[str, Any],
        inputs: list[Tensor],
        made: list[Tensor],
        results: dict[int, Any],
        wanted: list[int],
        targets: list[Tensor],
        drawn: Randomness | None,
    ) -> None:
        self._backward, self._targets, self._drawn = backward, targets, drawn
        self._kept = [kept(made[i]) for i in wanted]
        self._feeds = {f"input.{i}": feeds[f"input.{i}"] for i in backward.inputs}
        for i, k in enumerate(backward.saved):
            self._feeds[f"{SAVED}{i}"] = results.get(k)
        read = [inputs[i] for i in backward.inputs] + backward.variables
        read += [made[k] for k in backward.saved if k < len(made)]
        self._versions = [(x._version, x._version[0], x.meta) for x in read]

    def gradients(self, grads: list[Any]) -> list[Tensor]:
        """Gradients of the targets. Raises AutogradError for a pass that is to be differentiated
        itself, and where what was saved has been overwritten.
        """
        name = self._backward.name
        if is_grad_enabled():
            raise AutogradError(
                f"{name}: a compiled function has no second derivatives; call the function itself"
            )
        for counter, version, meta in self._versions:
            if counter[0] != version:
                raise AutogradError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: {meta}, of a call of {name}"
                )
        feeds = dict(self._feeds)
        for i, (g, like) in enumerate(zip(grads, self._kept, strict=True)):
            feeds[f"{GRAD}{i}"] = _gradient_array(g, like)
        return self._backward.run(feeds, self._targets, self._drawn)


def _blank(x: Tensor) -> Tensor:
    """A tensor of that type in that place, without memory or history."""
    y = raw(x.meta, None, x._device)
    y._placement, y._sbp = x._placement, x._sbp
    return y


def _gradient_array(g: Tensor | None, like: Kept) -> Any:
    """The array of a gradient, laid out as its tensor; zeros for none."""
    if g is None:
        return array_on(np.zeros(like.shape, like.meta.dtype.np), like.device)
    if like.placement is not None and (g._placement, g._sbp) != (like.placement, like.sbp):
        g = g.to_global(like.placement, like.sbp)
    return g._array


def _variables(graph: LogicalGraph, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The variables of a graph by their names."""
    return {name: tensors[name] for name in graph.variables}


def _written(graph: LogicalGraph, tensors: dict[str, Tensor]) -> list[Tensor]:
    """The variables that a graph overwrites."""
    found = graph.variables.items()
    return [tensors[name] for name, v in found if any(user.overwrites(v) for user in v.users)]


def _lay_out_inputs(graph: LogicalGraph, layouts: dict[str, NdSbp | None]) -> None:
    for node in graph.of_kind("input"):
        name = str(node.attrs["name"])
        if name in layouts:
            node.outputs[0].sbp = layouts[name]
