"""A gradient scaler of a graph: its numbers are variables, which the pass `scale_loss` reads and
updates (scheduler/compiler/rewrite/scale_loss.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oneflow.amp.grad_scaler import GradScaler
from oneflow.core.dtype import float32, int64
from oneflow.core.errors import GraphError
from oneflow.core.job_config import SCALE, SKIPPED, TRACKER, Scaling
from oneflow.optim.optimizer import scalar_beside
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.optimizer import GraphOptimizer


class GraphScaler:
    """A scaler's numbers as variables of a graph.

    scaler: gives the factors and the numbers to begin with, and shows the graph's from then on.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self.scaler = scaler
        self._tensors: dict[str, Tensor] = {}

    def tensors(self, optimizers: Sequence[GraphOptimizer]) -> dict[str, Tensor]:
        """The variables by name, beside the first parameter: the scale, the finite steps since it
        changed, and of each optimizer the number of steps left out.
        """
        first = next((p for o in optimizers for p in o.parameters()), None)
        if first is None:
            raise GraphError("set_grad_scaler: the graph has no optimizer with parameters")
        if not self._tensors:
            scale, tracker = self.scaler.numbers
            self._tensors = {
                SCALE: scalar_beside(first, scale, float32),
                TRACKER: scalar_beside(first, tracker, int64),
            }
            self.scaler.follow(*self._tensors.values())
        for o in optimizers:
            name = f"{SKIPPED}{o.number}"
            if name not in self._tensors:
                self._tensors[name] = scalar_beside(first, 0, int64)
        return self._tensors

    @property
    def settings(self) -> Scaling:
        """The factors for the compiler."""
        return Scaling(*self.scaler.factors)
