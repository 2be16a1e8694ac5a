"""Facts of a graph before it is traced, and the place in the program that a trace has reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oneflow.core.dtype import DType
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.distributed.world import world
from oneflow.graph.names import names_of, owners_of, owners_of_states

if TYPE_CHECKING:
    from oneflow.core.graph import Node
    from oneflow.graph.spec import GraphSpec, Stage
    from oneflow.tensor.tensor import Tensor


@dataclass
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

    rank: int
    names: dict[int, str]
    owners: dict[int, Tensor]
    paths: dict[int, str]
    state_of: dict[int, str]
    updated: frozenset[int]
    stage_of: dict[int, Stage]
    stages: dict[Placement, list[int]]
    lays_out: bool
    whole: dict[int, NdSbp]
    amp: DType | None
    read_ahead: Sequence[Tensor]


@dataclass
class Place:
    """The part of the program that is recorded.

    module: path of the module that is called.  stage: its stage; None outside of all that have one.
    maker: the node of the call whose gradients are recorded.  writes_back: what was overwritten
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


def known_of(spec: GraphSpec, read_ahead: Sequence[Tensor]) -> Known:
    """The facts of a graph. read_ahead: see Known."""
    splits = spec.config.zero is not None and bool(spec.optimizers)
    names = names_of(spec)  # makes the states of the optimizers
    return Known(
        world().rank,
        names,
        owners_of(spec),
        spec.paths(),
        owners_of_states(spec),
        frozenset(id(p) for o in spec.optimizers for p in o.parameters()),
        spec.stages,
        _stages_by_placement(spec.stages),
        spec.config.auto_parallel,
        spec.variables.whole if splits else {},
        spec.config.amp_dtype,
        read_ahead,
    )


def _stages_by_placement(stages: dict[int, Stage]) -> dict[Placement, list[int]]:
    found: dict[Placement, set[int]] = {}
    for stage in stages.values():
        if stage.placement is not None:
            found.setdefault(stage.placement, set()).add(stage.id)
    return {placement: sorted(ids) for placement, ids in found.items()}
