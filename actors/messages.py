"""Messages between actors, and the effects that actors ask for. All frozen; made once when a plan
is bound and then reused.

The protocol: the producer of a register sends Ready to every reader, once for each filled slot. A
reader sends Freed to the producer, once for each Ready it got, when it has done with the slot.
Where registers take turns in one memory, a producer whose slot was freed by all readers sends
Granted to the producer of the next. The stream that ran an actor's kernel sends it KernelDone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ready:
    """Slot `slot` of the register behind input `channel` of the receiver is filled.

    channel: position among the receiver's input channels; a register read from several ranks has
    one channel per rank.
    """

    channel: int
    slot: int


@dataclass(frozen=True, slots=True)
class Freed:
    """One reader has done with `slot` of output `output` of the receiver."""

    output: int
    slot: int


@dataclass(frozen=True, slots=True)
class Granted:
    """The memory of `slot` of output `output` of the receiver is its own now."""

    output: int
    slot: int


@dataclass(frozen=True, slots=True)
class KernelDone:
    """The kernel of the receiver's running act has finished."""


KERNEL_DONE = KernelDone()

Message = Ready | Freed | Granted | KernelDone


@dataclass(frozen=True, slots=True)
class Send:
    """Deliver `message` to an actor of this rank."""

    target: int
    message: Message


@dataclass(frozen=True, slots=True)
class Post:
    """Deliver the message with number `code` to another rank (see `Codebook`)."""

    rank: int
    code: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Run the receiver's kernel.  in_slots, out_slots: one per channel and output."""

    in_slots: tuple[int, ...]
    out_slots: tuple[int, ...]


Effect = Send | Post | Launch
