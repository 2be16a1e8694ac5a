"""The state of a graph: of its modules, of its optimizers, and the number of steps made."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.core.dtype import int64
from oneflow.core.errors import GraphError
from oneflow.distributed.world import world
from oneflow.functional.random_state import STATE_NBYTES, get_rng_state, set_rng_state
from oneflow.graph.names import states_by_name
from oneflow.optim.optimizer import OLD_NAMES
from oneflow.tensor.tensor import Tensor, wrap

if TYPE_CHECKING:
    from oneflow.graph.spec import GraphSpec

STEP_KEY = "System-Train-TrainStep"
RANDOM_KEY = "System-Train-RandomState"


def state_of(spec: GraphSpec, destination: OrderedDict[str, Any] | None) -> OrderedDict[str, Any]:
    """See Graph.state_dict."""
    result: OrderedDict[str, Any] = OrderedDict() if destination is None else destination
    for name, module in spec.modules.items():
        result[name] = module.state_dict()
    result.update(states_by_name(spec))
    result[STEP_KEY] = wrap(np.array([spec.plans.steps_done], dtype=int64.np))
    randomness = None if spec.plans.now is None else spec.plans.now.randomness
    if randomness is not None and randomness.calls_default:
        result[RANDOM_KEY] = get_rng_state()
    return result


def load_state(spec: GraphSpec, state: Mapping[str, Any], strict: bool) -> None:
    """See Graph.load_state_dict."""
    if spec.is_compiled:
        raise GraphError("load_state_dict must be called before the graph's first call")
    own = states_by_name(spec)
    state = {_renamed(name): value for name, value in state.items()}
    for name, module in spec.modules.items():
        if name in state:
            module.load_state_dict(state[name], strict)
    for name, tensor in own.items():
        if name in state:
            tensor.copy_(state[name])
    if STEP_KEY in state:
        spec.plans.first_step = int(_own_part(state[STEP_KEY], 1)[0])
        for optimizer in spec.optimizers:
            optimizer.resume(spec.plans.first_step)
    if RANDOM_KEY in state:
        set_rng_state(wrap(_own_part(state[RANDOM_KEY], STATE_NBYTES)))
    known = {*spec.modules, *own}
    missing, unexpected = known - set(state), set(state) - known - {STEP_KEY, RANDOM_KEY}
    if strict and (missing or unexpected):
        raise GraphError(
            f"load_state_dict of {spec.name}: missing {sorted(missing)}, "
            f"unexpected {sorted(unexpected)}"
        )


def _renamed(name: str) -> str:
    """A name of OneFlow's graphs as ours: "w-m" of Adam is "w-exp_avg"."""
    variable, dash, key = name.rpartition("-")
    return f"{variable}{dash}{OLD_NAMES.get(key, key)}" if dash else name


def _own_part(x: Tensor, size: int) -> np.ndarray[Any, Any]:
    """The values of a tensor of `size` elements. Of a global one, into which the ranks have put one
    such tensor after the other, those of this rank; of the first where this rank has put none.
    """
    values, placement = x.numpy().reshape(-1), x._placement
    ranks = () if placement is None else placement.rank_ids
    start = size * ranks.index(world().rank) if world().rank in ranks else 0
    return values[start : start + size] if start < values.size else values[:size]
