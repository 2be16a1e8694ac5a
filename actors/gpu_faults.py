"""Errors of a GPU told in terms of a graph: the values that fill its memory, and which op launched
a kernel that failed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from oneflow.actors.registers import made_on, slot_layout, storage_of
from oneflow.core.errors import DeviceFaultError, DeviceMemoryError, OneFlowError
from oneflow.core.graph import Node
from oneflow.core.plan import Plan

if TYPE_CHECKING:
    from oneflow.actors.segment import Segment

SHOWN = 5
_FAULTS = ("CUDARuntimeError", "CUDADriverError")  # of CuPy, which is not always there


class _Block(NamedTuple):
    """A part of the memory of a rank."""

    nbytes: int
    text: str


def explained(
    error: Exception, plan: Plan, rank: int, segments: Mapping[int, Segment]
) -> OneFlowError | None:
    """The error of a GPU as one of ours; None: it is another one.

    segments: of the rank.
    """
    if is_out_of_memory(error):
        return DeviceMemoryError(
            f"no memory is left on the GPU of rank {rank}: {_words(error)}. Of graph "
            f"{plan.graph.name} its registers and temporaries take the most:\n"
            f"{largest(plan, rank, segments)}\n"
            "smaller micro-batches, recomputation or config.set_memory_limit take less"
        )
    if is_fault(error):
        return DeviceFaultError(f"a kernel on the GPU of rank {rank} failed: {_words(error)}")
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Does it say that a GPU has no memory left?"""
    name = type(error).__name__
    return name == "OutOfMemoryError" or (name in _FAULTS and "MemoryAllocation" in str(error))


def is_fault(error: BaseException) -> bool:
    """Does it say that a GPU failed at something but for memory?"""
    return type(error).__name__ in _FAULTS and not is_out_of_memory(error)


def names_op() -> bool:
    """Is an error that comes out of a launch its own?  Else it may be of any kernel launched before
    it, for kernels run later than they are launched."""
    return os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"


def launched_earlier(error: Exception) -> str:
    """Words for an error of a kernel that the op which met it need not have launched; "" for other
    errors, and where launches wait for their kernels."""
    if not is_fault(error) or names_op():
        return ""
    return (
        "; met here, the kernel that failed was launched by this op or before it: "
        "CUDA_LAUNCH_BLOCKING=1 names its op"
    )


def largest(plan: Plan, rank: int, segments: Mapping[int, Segment], count: int = SHOWN) -> str:
    """A line for each of the largest registers and temporaries of a rank, largest first."""
    blocks = []
    for register in plan.registers:
        if made_on(register, rank) and storage_of(register) is register:
            layout = slot_layout(register, rank)
            for value in register.values:
                type_ = layout.types[value.id]
                many = f"{register.num_slots} slots of " if register.num_slots > 1 else ""
                text = f"register %{value.id}, {many}{type_}{_maker(value.node)}"
                blocks.append(_Block(type_.nbytes * register.num_slots, text))
    for segment in segments.values():
        for t in segment.temporaries():
            text = f"temporary {t.name}, {t.type}{_maker(t.node)}"
            blocks.append(_Block(t.type.nbytes, text))
    blocks.sort(key=lambda b: -b.nbytes)
    return "\n".join(f"  {b.nbytes / 2**20:12,.1f} MiB  {b.text}" for b in blocks[:count])


def _maker(node: Node) -> str:
    return f" of {node.op} ({node.location})" if node.location else f" of {node.op}"


def _words(error: Exception) -> str:
    return " ".join(str(error).split())
