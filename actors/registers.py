"""Registers on a rank: where each value lies in each slot.

Registers that other ranks may read come first in a rank's shared memory, in the order of their ids,
so that every rank can work out the layout of any other from the plan alone and nothing about
offsets has to be sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from oneflow.actors.memory import aligned
from oneflow.boxing.boxes import local_type
from oneflow.core.actor_kinds import MEETS_PEERS, READS_PEERS
from oneflow.core.errors import InternalError
from oneflow.core.graph import Value
from oneflow.core.plan import Plan, RegisterSpec, in_place_of
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array


@dataclass(frozen=True)
class SlotLayout:
    """The layout of one slot on this rank.

    types, offsets: of each value on this rank, by value id. nbytes: of one slot.
    """

    types: dict[int, TensorType]
    offsets: dict[int, int]
    nbytes: int


def slot_layout(register: RegisterSpec, rank: int) -> SlotLayout:
    """Lay the values of a register side by side in one slot on `rank`, each aligned."""
    types: dict[int, TensorType] = {}
    offsets: dict[int, int] = {}
    nbytes = 0
    for value in register.values:
        types[value.id] = local_value_type(value, rank)
        offsets[value.id] = nbytes
        nbytes += aligned(types[value.id].nbytes)
    return SlotLayout(types, offsets, nbytes)


def local_value_type(value: Value, rank: int) -> TensorType:
    """Type of the part of `value` on `rank`. Raises InternalError before the SBP is known."""
    if value.sbp is None:
        raise InternalError(f"%{value.id} of {value.node.describe()} has no SBP")
    return local_type(value.type, value.sbp, value.placement, rank)


def made_on(register: RegisterSpec, rank: int) -> bool:
    """Does `rank` make this register?"""
    return rank in register.producer.placement


def storage_of(register: RegisterSpec) -> RegisterSpec:
    """The register whose memory it uses: its own, but for those that are made in place, and for
    those that use a memory in turns.
    """
    source = in_place_of(register)
    if source is not None:
        return storage_of(source)
    return register if register.storage is None else register.storage


def turns(plan: Plan) -> dict[int, list[RegisterSpec]]:
    """The registers of each memory that several use in turns, in their order, by the id of each."""
    members: dict[int, list[RegisterSpec]] = {}
    for register in plan.registers:
        if register.values and in_place_of(register) is None:
            members.setdefault(storage_of(register).id, []).append(register)
    return {r.id: some for some in members.values() if len(some) > 1 for r in some}


def is_shared(register: RegisterSpec) -> bool:
    """May another rank read it?"""
    return any(c.kind in READS_PEERS for c in register.consumers)


def is_met(register: RegisterSpec) -> bool:
    """May another rank wait for it, whether it reads its memory or not?"""
    return any(c.kind in MEETS_PEERS for c in register.consumers)


def shared_layout(plan: Plan, rank: int) -> tuple[dict[int, int], int]:
    """Offset of each shared register of `rank`, and the bytes of all of them."""
    return _layout([r for r in plan.registers if is_shared(r) and made_on(r, rank)], rank)


def private_layout(plan: Plan, rank: int) -> tuple[dict[int, int], int]:
    """The same for registers that only this rank reads."""
    return _layout([r for r in plan.registers if not is_shared(r) and made_on(r, rank)], rank)


def _layout(registers: Iterable[RegisterSpec], rank: int) -> tuple[dict[int, int], int]:
    sizes: dict[int, int] = {}
    for register in registers:
        storage = storage_of(register)
        if storage is register or storage is register.storage:
            size = slot_layout(register, rank).nbytes * register.num_slots
            sizes[storage.id] = max(sizes.get(storage.id, 0), size)
    offsets: dict[int, int] = {}
    nbytes = 0
    for key, size in sizes.items():
        offsets[key] = nbytes
        nbytes += size
    return offsets, nbytes


class RegisterMemory:
    """One register of one rank, seen from this process: `arrays[slot][value id]`."""

    __slots__ = ("arrays", "layout", "register")

    def __init__(self, register: RegisterSpec, rank: int, buffer: Array, offset: int) -> None:
        self.register = register
        self.layout = slot_layout(register, rank)
        self.arrays: list[dict[int, Array]] = []
        for slot in range(register.num_slots):
            start = offset + slot * self.layout.nbytes
            self.arrays.append(
                {
                    value: array_at(buffer, start + self.layout.offsets[value], type_)
                    for value, type_ in self.layout.types.items()
                }
            )


def array_at(buffer: Array, offset: int, type_: TensorType) -> Array:
    """A typed array in `buffer` (uint8), `offset` bytes from its start."""
    if buffer.__class__ is np.ndarray:  # at once: each graph makes thousands
        made: Array = np.ndarray(type_.shape, type_.dtype.np, buffer, offset)
        return made
    flat: Array = buffer[offset : offset + type_.nbytes].view(type_.dtype.np)
    return flat.reshape(type_.shape)
