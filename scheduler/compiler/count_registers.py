"""The number of slots of each register. Slots are the only flow control: these numbers are the
schedule.

With one piece a step nothing overlaps, and one slot is enough. With more pieces:
  - what a stage keeps from its forward for its backward pass has `stages - stage` slots: stage s
  may be so many
    pieces ahead of its own backward, which is the 1F1B schedule (the last stage alternates, the
    first runs ahead
    by the depth of the pipeline);
  - what crosses to another actor at once has 2, so that the next piece can be made while this one
  is read;
  - what is only added to a sum has 1: the sum is made in the same place, at once;
  - where a variable is read and then overwritten, or overwritten and then again, by another actor
  it is 1: the writes of a piece end before the next one begins.
"""

from __future__ import annotations

from oneflow.core.graph import LogicalGraph, Value, written_variable
from oneflow.core.op import find_op
from oneflow.core.plan import ActorKind, RegisterSpec, in_place_of


def count_registers(graph: LogicalGraph, registers: list[RegisterSpec]) -> None:
    """Sets `num_slots` of every register."""
    num_stages = 1 + max((node.stage for node in graph), default=0)
    for register in registers:
        register.num_slots = _slots(register, num_stages)
    for register in reversed(registers):  # in place: slot for slot the same
        source = in_place_of(register)
        if source is not None:
            source.num_slots = register.num_slots


def _slots(register: RegisterSpec, num_stages: int) -> int:
    if register.items == 1:
        return 1
    if not register.values or any(_is_written_again(value) for value in register.values):
        return 1
    producer = register.producer
    last = max((c.level for c in register.consumers), default=producer.level)
    stage = producer.nodes[0].stage
    is_kept = last - producer.level > 2 and producer.kind is not ActorKind.BOXING
    if num_stages > 1 and is_kept:
        return max(num_stages - stage, 1)
    is_added = all(c.kind is ActorKind.ACCUMULATE for c in register.consumers)
    return 1 if is_added else 2


def _is_written_again(value: Value) -> bool:
    if value.node.is_structural or written_variable(value) is value:
        return False
    return any(
        value is user.inputs[i]
        for user in value.users
        if not user.is_structural
        for i in find_op(user.op).mutates.values()
    )
