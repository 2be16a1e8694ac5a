"""Facts of a graph before it is traced, and the place in the program that a trace has reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oneflow.core.placement import Placement
from oneflow.distributed.world import world
from oneflow.graph.names import model_tensors, names_of, scaler_states, states_of

if TYPE_CHECKING:
    from oneflow.core.graph import Node
    from oneflow.graph.spec import GraphSpec, Stage
    from oneflow.tensor.tensor import Tensor


class Known:
    """Facts of a graph. Names and layouts are by the id of a tensor, paths and stages by that of a
    module.

    rank: of this process: local tensors live there.  owners: tensors that have a name, by the id of
    their array.  state_of: the parameter whose state a tensor is.  updated: parameters that the
    graph's optimizers update.  stages: of a placement, as far as they were set.  lays_out: the
    search for layouts lays out variables, too.  whole: layouts of tensors before ZeRO split them.
    amp: the half dtype of mixed precision, if there is one.  read_ahead: input that the graph's
    readers gave to an earlier trace, which no step has used.
    """

    def __init__(self, spec: GraphSpec, read_ahead: Sequence[Tensor]) -> None:
        self.rank = world().rank
        self.names = names_of(spec)
        states = list(states_of(spec))
        self.state_of = {id(state): self.names[id(p)] for p, _, state in states}
        named = *model_tensors(spec), *(x for _, _, x in states), *scaler_states(spec).values()
        self.owners = {id(x._array): x for x in named if x._array is not None}
        self.paths = spec.paths()
        self.updated = frozenset(map(id, spec.parameters()))
        self.stage_of = spec.stages
        self.stages = _stages_by_placement(spec.stages)
        self.lays_out = spec.config.auto_parallel
        splits = spec.config.zero is not None and bool(spec.optimizers)
        self.whole = spec.variables.whole if splits else {}
        self.amp = spec.config.amp_dtype
        self.read_ahead = read_ahead


@dataclass
class Place:
    """The part of the program that is recorded.

    module: path of the module that is called.  stage: its stage; None outside of all that have one.
    maker: the node of the call whose gradients are recorded.  writes_back: a value overwritten
    elsewhere is brought back to where it lies.  has_own_dtypes: ops keep the dtypes of the program.
    opens: of the next node, see Node.
    """

    module: str = ""
    stage: int | None = None
    maker: Node | None = field(default=None, repr=False)
    is_backward: bool = False
    writes_back: bool = False
    has_own_dtypes: bool = False
    opens: int = 0

    def inside(self, module: str, stage: int | None) -> Place:
        """The beginning of a call of a module from here."""
        depth = module.count(".") + 1
        opens = min(self.opens or depth, depth)
        facts = self.maker, self.is_backward, self.writes_back, self.has_own_dtypes
        return Place(module, stage, *facts, opens)


def _stages_by_placement(stages: dict[int, Stage]) -> dict[Placement, list[int]]:
    found: dict[Placement, set[int]] = {}
    for stage in stages.values():
        if stage.placement is not None:
            found.setdefault(stage.placement, set()).add(stage.id)
    return {placement: sorted(ids) for placement, ids in found.items()}
