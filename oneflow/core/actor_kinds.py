"""The kinds of actors of a plan, for those who name them without reading plans."""

from __future__ import annotations

from enum import IntEnum


class ActorKind(IntEnum):
    """The task of an actor; see protos/plan.proto."""

    SEGMENT = 0
    INPUT = 1
    OUTPUT = 2
    UNPACK = 3
    PACK = 4
    ACCUMULATE = 5
    BOXING = 6
    FLAT_REDUCE = 7
    FLAT_REDUCE_SCATTER = 8
    FLAT_ALL_GATHER = 9
    BOX_SUM = 10
    BOX_SPREAD = 11
    ALL_REDUCE = 12


FIRST_HALVES = frozenset({ActorKind.FLAT_REDUCE_SCATTER, ActorKind.BOX_SUM})
"""Kinds whose register only the next actor reads, which is their second half."""

SECOND_HALVES = frozenset({ActorKind.FLAT_ALL_GATHER, ActorKind.BOX_SPREAD})
"""Kinds that work in place in the register of their first half."""

FLAT_KINDS = frozenset(
    {
        ActorKind.FLAT_REDUCE,
        ActorKind.FLAT_REDUCE_SCATTER,
        ActorKind.FLAT_ALL_GATHER,
        ActorKind.ALL_REDUCE,
    }
)
"""An all_reduce over the bytes of a register, whatever tensors lie in it."""

MEETS_PEERS = FLAT_KINDS | {ActorKind.BOXING, ActorKind.BOX_SUM, ActorKind.BOX_SPREAD}
"""Kinds that wait until other ranks have filled their registers."""

READS_PEERS = MEETS_PEERS - {ActorKind.ALL_REDUCE}
"""Kinds that read the memory of those registers; a backend of collectives moves bytes by itself."""
