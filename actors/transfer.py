"""Actors that carry values between the caller and the graph, and between the rates of steps and
pieces.

A kernel object is called with (in_slots, out_slots), one slot per input channel and output
register.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from oneflow.actors.registers import RegisterMemory
from oneflow.boxing.collectives.exchange import is_half
from oneflow.core.errors import GraphError
from oneflow.core.graph import Node
from oneflow.core.plan import ActorSpec
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import Hardware

Kernel = Callable[[tuple[int, ...], tuple[int, ...]], None]


class Feed:
    """The caller's values for this step, by input name: arrays of this rank's part."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self.arrays: Mapping[str, Array] = {}

    def kernel(self, spec: ActorSpec, outputs: Sequence[RegisterMemory]) -> Kernel:
        names = {n.outputs[0].id: str(n.attrs["name"]) for n in spec.nodes}
        copy = self._hardware.copy

        def act(in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> None:
            for memory, slot in zip(outputs, out_slots, strict=True):
                for value, array in memory.arrays[slot].items():
                    given = self.arrays[names[value]]
                    if given.shape != array.shape:
                        raise GraphError(
                            f"input {names[value]} has shape {list(given.shape)} on this rank, "
                            f"the graph was compiled for {list(array.shape)}"
                        )
                    copy(array, given)

        return act


class Fetch:
    """The step's values for the caller, by output index: fresh arrays of this rank's part, or for
    outputs that are `lent` the register's own, which hold until the next step.
    """

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self.arrays: dict[int, Array] = {}

    def kernel(self, spec: ActorSpec, inputs: Sequence[RegisterMemory]) -> Kernel:
        wanted = [
            (int(n.attrs["index"]), n.inputs[0].id, bool(n.attrs.get("lent"))) for n in spec.nodes
        ]
        xp = self._hardware.xp

        def act(in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> None:
            found: dict[int, Array] = {}
            for memory, slot in zip(inputs, in_slots, strict=True):
                found.update(memory.arrays[slot])
            for index, value, is_lent in wanted:
                array = found[value]
                # A copy of its own: the caller may keep it as long as it likes.
                self.arrays[index] = array if is_lent else xp.array(array, copy=True)

        return act


class _Piecewise(ABC):
    """Base of actors that run once a piece and speak of pieces of a step's value."""

    def __init__(
        self,
        spec: ActorSpec,
        inputs: Sequence[RegisterMemory],
        outputs: Sequence[RegisterMemory],
        hardware: Hardware,
    ) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._xp = hardware.xp
        self._num_pieces = spec.acts
        self._piece = 0
        self._totals: dict[int, Array] = {}  # value of 16-bit floats -> its sum so far
        self._pairs: list[tuple[int, int]] = [
            (n.inputs[0].id, n.outputs[0].id) for n in spec.nodes if _is_read(n, outputs)
        ]

    def __call__(self, in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> None:
        sources: dict[int, Array] = {}
        targets: dict[int, Array] = {}
        for memory, slot in zip(self._inputs, in_slots, strict=True):
            sources.update(memory.arrays[slot])
        for memory, slot in zip(self._outputs, out_slots, strict=True):
            targets.update(memory.arrays[slot])
        for source, target in self._pairs:
            self._act(sources[source], targets[target], self._piece, target)
        self._piece = (self._piece + 1) % self._num_pieces

    @abstractmethod
    def _act(self, source: Array, target: Array, piece: int, value: int) -> None:
        """Takes piece number `piece` from source to target. value: the id of the target's."""


def _is_read(node: Node, outputs: Sequence[RegisterMemory]) -> bool:
    return any(node.outputs[0].id in m.layout.types for m in outputs)


class Unpack(_Piecewise):
    """Piece k is rows [k*m, (k+1)*m) of the step's value on this rank."""

    def _act(self, source: Array, target: Array, piece: int, value: int) -> None:
        rows = target.shape[0]
        self._xp.copyto(target, source[piece * rows : (piece + 1) * rows])


class Pack(_Piecewise):
    """Scalars are stacked, other pieces concatenated along dim 0."""

    def _act(self, source: Array, target: Array, piece: int, value: int) -> None:
        if source.ndim == 0:
            target[piece] = source
        else:
            rows = source.shape[0]
            self._xp.copyto(target[piece * rows : (piece + 1) * rows], source)


class Accumulate(_Piecewise):
    """Mean over the pieces of a step, in the order of the pieces; of 16-bit floats made in float32
    and rounded once."""

    def _act(self, source: Array, target: Array, piece: int, value: int) -> None:
        total = target
        if is_half(target.dtype):
            total = self._totals.get(value, target)
            if total is target:
                total = self._totals[value] = self._xp.empty(target.shape, np.float32)
        if piece == 0:
            self._xp.copyto(total, source)
        else:
            self._xp.add(total, source, out=total)
        if piece == self._num_pieces - 1:
            self._xp.multiply(total, 1.0 / self._num_pieces, out=total)
            if total is not target:
                self._xp.copyto(target, total, casting="same_kind")
