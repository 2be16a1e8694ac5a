"""A compiled graph as a dict: its plan, the tensors that the plan reads and writes, and how it is
called. A graph that loads it neither traces nor compiles.

The dict holds tensors, numbers, text, lists and dicts only, so `flow.save` takes it. Each rank
saves and loads its own.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.core.device import DeviceLike
from oneflow.core.errors import GraphError
from oneflow.core.plan import Plan, plan_digest
from oneflow.functional.random_state import default_generator
from oneflow.graph.arguments import Arguments, Meta, RowsNeeded
from oneflow.graph.binding import bind_plan
from oneflow.graph.compiling import (
    Compiled,
    device_index,
    modes_of,
    ranks_that_draw_together,
)
from oneflow.graph.draws import GraphRandomness
from oneflow.graph.layout_assignment import take_layout, take_layouts
from oneflow.graph.low_precision_weights import HalfCopies
from oneflow.graph.names import model_names, model_tensors, names_of, states_by_name
from oneflow.graph.tree import Tree, map_tensors, record_of, tensors_of
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor, wrap, wrap_traced

if TYPE_CHECKING:
    from oneflow.core.graph import Node, Value
    from oneflow.graph.spec import GraphSpec

FORMAT = 3
_PLAIN = (bool, int, float, str, bytes, type(None))
_TENSOR = "oneflow tensor"

State = Mapping[str, Any]


def runtime_state_of(
    spec: GraphSpec, destination: OrderedDict[str, Any] | None, with_eager: bool
) -> OrderedDict[str, Any]:
    """See Graph.runtime_state_dict."""
    if spec.plans.now is None:
        raise GraphError(f"runtime_state_dict: graph {spec.name} is not compiled; call it first")
    result: OrderedDict[str, Any] = OrderedDict() if destination is None else destination
    if not spec.plans.takes_shapes:
        result.update(_plan_state(spec, spec.plans.now, with_eager))
        return result
    for order, compiled in enumerate(spec.plans.kept or [spec.plans.now]):
        name = f"{spec.name}_{order}" if order else spec.name
        result[name] = {**_plan_state(spec, compiled, with_eager), "cache_order": order}
    return result


def _plan_state(spec: GraphSpec, compiled: Compiled, with_eager: bool) -> dict[str, Any]:
    """A plan, the tensors that it reads, and how it is called."""
    known = names_of(spec)
    left_out = {} if with_eager else model_names(spec)
    held = {known.get(id(x)): x for x in compiled.variables.values()}
    randomness = compiled.randomness
    data = compiled.job.bound.plan.to_bytes()
    return {
        "format": FORMAT,
        "graph_name": spec.name,
        "variables": OrderedDict((n, x) for n, x in held.items() if n and id(x) not in left_out),
        "step": spec.plans.steps_done,
        "plan": wrap(np.frombuffer(data, np.uint8).copy()),
        "captured": {n: x for n, x in compiled.variables.items() if id(x) not in known},
        "halves": compiled.halves.names(compiled.variables) if compiled.halves else [],
        "paths": list(compiled.arguments.paths),
        "constants": _plain_constants(spec, compiled),
        "rows": {name: tuple(needed) for name, needed in compiled.arguments.rows.items()},
        "is_global": [placement is not None for _, placement, _ in compiled.arguments.metas],
        "input_names": list(compiled.input_names),
        "outputs_original": _described(spec, compiled.outputs),
        "draws": [] if randomness is None else randomness.default_counts(),
    }


def _plain_constants(spec: GraphSpec, compiled: Compiled) -> dict[str, Any]:
    constants = compiled.arguments.constants
    for path, leaf in constants.items():
        if not isinstance(leaf, _PLAIN):
            raise GraphError(
                f"runtime_state_dict of {spec.name}: argument {path[3:]} is a "
                f"{type(leaf).__name__}, which cannot be saved"
            )
    return constants


def _described(spec: GraphSpec, tree: Tree) -> Any:
    """The structure that build() returned, with a dict in the place of each tensor."""
    if isinstance(tree, Tensor):
        return {_TENSOR: tree._placement is not None}
    if (record := record_of(tree)) is not None:
        kind = f"{type(tree).__module__}:{type(tree).__qualname__}"
        return {"record": [kind, *([key, _described(spec, x)] for key, x in record.items())]}
    if isinstance(tree, (list, tuple)):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [_described(spec, item) for item in tree]}
    if isinstance(tree, dict):
        items = [[key, _described(spec, item)] for key, item in tree.items()]
        return {"dict": items}
    if not isinstance(tree, _PLAIN):
        raise GraphError(
            f"runtime_state_dict of {spec.name}: build() returns a {type(tree).__name__}, which "
            "cannot be saved"
        )
    return {"value": tree}


def load_runtime_state(spec: GraphSpec, state: State, warm_up: bool) -> None:
    """See Graph.load_runtime_state_dict."""
    if spec.is_compiled:
        raise GraphError("load_runtime_state_dict must be called before the graph's first call")
    states = _states(state)
    if not states or any(one.get("format") != FORMAT for one in states):
        raise GraphError(
            f"load_runtime_state_dict of {spec.name}: no state of a compiled graph of format "
            f"{FORMAT}; runtime_state_dict makes one"
        )
    if not spec.plans.takes_shapes and len(states) > 1:
        raise GraphError(
            f"load_runtime_state_dict of {spec.name}: the state has plans for {len(states)} "
            "shapes of inputs; decorate __init__ with Graph.with_dynamic_input_shape"
        )
    spec.plans.first_step = int(states[0]["step"])
    for optimizer in spec.optimizers:
        optimizer.resume(spec.plans.first_step)
    for one in states:
        compiled = _loaded(spec, one, {**one["variables"], **one["captured"]}, warm_up)
        spec.plans.keep(compiled)


def _states(state: State) -> list[State]:
    """One state, or those of the shapes of inputs in the order of their first calls."""
    if "format" in state or not all(isinstance(one, Mapping) for one in state.values()):
        return [state]
    return sorted(state.values(), key=lambda one: int(one.get("cache_order", 0)))


def _loaded(
    spec: GraphSpec, state: Mapping[str, Any], saved: Mapping[str, Tensor], warm_up: bool
) -> Compiled:
    """A plan of the state, bound to the graph's variables."""
    data = _bytes(state)
    plan = Plan.from_bytes(data)
    variables = _variables(spec, plan, saved)
    arrays = take_layouts(plan, variables, spec.variables.whole)
    index = device_index(variables.values())
    job = bind_plan(plan, plan_digest(data), spec.job_config(), arrays, index)
    job.step = spec.plans.first_step
    nodes = {str(n.attrs["name"]): n for n in plan.graph.of_kind("input")}
    metas = [
        _meta(nodes.get(f"input.{i}"), is_global) for i, is_global in enumerate(state["is_global"])
    ]
    outputs = plan.graph.outputs
    counter = iter(range(len(outputs)))

    def made(is_global: bool) -> Tensor:
        value = outputs[next(counter)]
        place = (value.placement, value.sbp) if is_global else (None, None)
        return wrap_traced(value, value.type, placement=place[0], sbp=place[1])

    compiled = Compiled(
        job,
        None,
        variables,
        Arguments.of(
            spec.name,
            state["paths"],
            state["constants"],
            metas,
            {name: RowsNeeded(*needed) for name, needed in state.get("rows", {}).items()},
        ),
        list(state["input_names"]),
        _rebuilt(state["outputs_original"], made),
        outputs,
        modes_of(spec, (), variables.values()),
        _randomness(spec, plan, state["draws"]),
        halves=HalfCopies.of([(variables[x], variables[copy]) for x, copy in state["halves"]]),
    )
    if warm_up and not _has_effects(plan) and compiled.randomness is None:
        job.run({f"input.{i}": _zeros(nodes[f"input.{i}"]) for i in range(len(metas))})
        job.step = spec.plans.first_step
    return compiled


def _variables(spec: GraphSpec, plan: Plan, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The graph's own tensors, with the saved values if there are some; the saved ones where it has
    none.
    """
    names = names_of(spec)
    own = {names[id(x)]: x for x in model_tensors(spec) if id(x) in names}
    own.update(states_by_name(spec))
    found: dict[str, Tensor] = {}
    for name, value in plan.graph.variables.items():
        if name in own:
            _take(spec, name, own[name], saved.get(name), value)
        elif name not in saved:
            raise GraphError(
                f"load_runtime_state_dict of {spec.name}: the plan reads {name}, which neither "
                "the graph has nor the state; save it with runtime_state_dict(with_eager=True)"
            )
        found[name] = own[name] if name in own else saved[name]
    return found


def _take(spec: GraphSpec, name: str, mine: Tensor, x: Tensor | None, value: Value) -> None:
    """Lay out the graph's own tensor as the plan has it, and give it the saved values, if any."""
    take_layout(mine, value, spec.variables.whole)
    place = (value.placement, value.sbp) if mine._placement is not None else (None, None)
    if (mine.meta, mine._placement, mine._sbp) != (value.type, *place):
        raise GraphError(
            f"load_runtime_state_dict of {spec.name}: {name} is {mine.meta} {mine._sbp or ''} "
            f"here, and {value.type} {place[1] or ''} in the plan"
        )
    if x is not None and mine is not x:
        with no_grad():
            mine.copy_(x)


def _meta(node: Node | None, is_global: bool) -> Meta:
    if node is None:
        raise GraphError("load_runtime_state_dict: the plan lacks an input of the graph")
    value = node.outputs[0]
    return (value.type, value.placement, value.sbp) if is_global else (value.type, None, None)


def _rebuilt(described: Mapping[str, Any], made: Callable[[bool], Tensor]) -> Any:
    ((kind, what),) = described.items()
    if kind == _TENSOR:
        return made(what)
    if kind == "value":
        return what
    if kind == "dict":
        return {key: _rebuilt(item, made) for key, item in what}
    if kind == "record":
        name, *fields = what
        return _class_of(name)(**{key: _rebuilt(item, made) for key, item in fields})
    items = [_rebuilt(item, made) for item in what]
    return tuple(items) if kind == "tuple" else items


def _class_of(name: str) -> Callable[..., Any]:
    """The dataclass of outputs. A file imports nothing: a program without the class has
    no use for the outputs either.
    """
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and is_dataclass(found)):
        raise GraphError(
            f"load_runtime_state_dict: build() returned a {name}, which is no dataclass of this "
            "program; import it before"
        )
    return found


def _randomness(spec: GraphSpec, plan: Plan, draws: list[int]) -> GraphRandomness | None:
    if not draws:
        return None
    each, once = draws
    ranks = ranks_that_draw_together(plan.graph)
    pieces = plan.graph.num_pieces
    return GraphRandomness(spec.name, [(default_generator, each, once)], pieces, ranks)


def _has_effects(plan: Plan) -> bool:
    return plan.world_size > 1 or any(node.has_effect for node in plan.graph)


def _zeros(node: Node) -> Any:
    return np.zeros(node.outputs[0].type.shape, node.outputs[0].type.dtype.np)


def runtime_state_to(state: State, device: DeviceLike) -> OrderedDict[str, Any]:
    """See Graph.runtime_state_dict_to."""
    if "format" not in state:
        return OrderedDict((name, runtime_state_to(one, device)) for name, one in state.items())
    held = [state["variables"], state["captured"]]
    variables, captured = map_tensors(held, lambda x: x.to(device))
    moved = OrderedDict(state, variables=variables, captured=captured)
    kinds = {x._device.type for x in tensors_of([variables, captured])}
    places = {node.placement.type for node in Plan.from_bytes(_bytes(state)).graph}
    if not kinds <= places:
        raise GraphError(
            f"runtime_state_dict_to: the plan is for {', '.join(sorted(places))}; it cannot move "
            f"to {device}"
        )
    return moved


def _bytes(state: Mapping[str, Any]) -> bytes:
    data: bytes = state["plan"].numpy().tobytes()
    return data
