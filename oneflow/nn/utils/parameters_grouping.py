"""Groups of parameters that upstream lays out in one piece of memory."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.core.no_effect import without_effect
from oneflow.tensor.tensor import Tensor

__all__ = ["ContiguousParamsGroup"]


class ContiguousParamsGroup:
    """Lists of parameters, kept as they are: the update of an optimizer runs over each parameter's
    own memory here. Warns once.
    """

    def __init__(
        self, params_group_list: Sequence[Sequence[Tensor]], for_module: bool = False
    ) -> None:
        without_effect("ContiguousParamsGroup", "parameters keep their own memory")
        self.params_group_list = [list(group) for group in params_group_list]

    @property
    def grouped_parameters(self) -> list[Tensor]:
        """All parameters."""
        return [p for group in self.params_group_list for p in group]

    @property
    def grouped_grads(self) -> list[Tensor]:
        """All gradients that there are."""
        return [p.grad for p in self.grouped_parameters if p.grad is not None]
