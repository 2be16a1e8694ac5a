"""`graph.config`: what a user sets about how a graph is compiled."""

from __future__ import annotations

from oneflow.core.errors import ConfigError
from oneflow.core.job_config import ORDER_MODES


class GraphConfig:
    """Settings of one nn.Graph; they count until its first call."""

    def __init__(self) -> None:
        self.num_pieces = 1
        self.order_mode = "MemoryFirst"
        self.outputs_buffer_size = 2
        self._training = False

    @property
    def training(self) -> bool:
        """True once an optimizer was added."""
        return self._training

    def set_gradient_accumulation_steps(self, value: int) -> None:
        """Cuts each call's batch (dim 0 of every input) in `value` micro-batches; the gradient
        is their mean.
        """
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"gradient accumulation steps must be an integer >= 1, got {value!r}")
        self.num_pieces = value

    def set_outputs_buffer_size(self, value: int = 2) -> None:
        """How many calls' outputs may be alive at once in the plan."""
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"outputs buffer size must be an integer >= 1, got {value!r}")
        self.outputs_buffer_size = value

    def enable_straighten_algorithm(self, mode: str = "MemoryFirst") -> None:
        """How ops are ordered: one of "Disable", "SpeedFirst", "MemoryFirst", "OverlapCpuGpu",
        "DelayShortGpu".
        """
        if mode not in ORDER_MODES:
            raise AssertionError(
                f"please choose one of {', '.join(ORDER_MODES)} as straighten mode, got {mode!r}"
            )
        self.order_mode = mode

    def __repr__(self) -> str:
        return f"(CONFIG:config:GraphConfig(training={self.training}, ))"
