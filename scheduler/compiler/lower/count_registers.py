"""The number of slots of each register. Slots are the flow control: nobody runs further ahead than
there are free slots.

With one piece a step nothing overlaps, and one slot is enough. With more pieces:
- a value that crosses to another actor at once has 2, so that the next piece can be made while this
one
    is read;
  - one that is only added to a sum has 1: the sum is made in the same place, at once;
- one that a stage keeps for another of its phases has as many as the pipeline's schedule has pieces
between the two: p - i for those that stage i of p keeps for its backward pass, which makes the 1F1B
    order (the last stage alternates, the first runs ahead by the depth of the pipeline);
  - where a variable is read and then overwritten, or overwritten and then again, by another actor
    it is 1: the writes of a piece end before the next one begins.
"""

from __future__ import annotations

from oneflow.core.actor_kinds import ActorKind
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.plan import Plan, RegisterSpec, in_place_of
from oneflow.scheduler.compiler.schedule.phases import Phases, holds_back


def count_registers(plan: Plan, config: JobConfig, cluster: Cluster) -> None:
    """Set `num_slots` of every register, and the turns in which a rank's segments act."""
    phases = Phases(plan, config)
    plan.turns = phases.turns
    for register in plan.registers:
        register.num_slots = _slots(register, phases)
    for register in reversed(plan.registers):  # in place: slot for slot the same
        source = in_place_of(register)
        if source is not None:
            source.num_slots = register.num_slots


def _slots(register: RegisterSpec, phases: Phases) -> int:
    if register.items == 1:
        return 1
    if holds_back(register):
        return 1
    is_added = all(c.kind is ActorKind.ACCUMULATE for c in register.consumers)
    return 1 if is_added else phases.num_slots(register)
