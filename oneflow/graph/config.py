"""`graph.config`: what a user sets about how a graph is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oneflow.amp.autocasting import autocast
from oneflow.core.dtype import DType, DTypeLike, bfloat16, dtype_of, float16
from oneflow.core.errors import ConfigError
from oneflow.core.job_config import ORDER_MODES


class GraphConfig:
    """Settings of one nn.Graph; they count until its first call."""

    def __init__(self) -> None:
        self.num_pieces = 1
        self.order_mode = "MemoryFirst"
        self.auto_parallel = False
        self.hints: dict[str, object] = {}
        self._training = False
        self._amp_dtype: DType | None = None

    @property
    def training(self) -> bool:
        """True once an optimizer was added."""
        return self._training

    def enable_amp(self, mode: bool = True, *, dtype: DTypeLike = float16) -> None:
        """Runs `build` in mixed precision, as inside `flow.autocast` with this dtype (float16 or
        bfloat16) on every device. Parameters stay in float32; each is cast once a step.
        """
        wanted = dtype_of(dtype)
        if wanted not in (float16, bfloat16):
            raise ConfigError(f"enable_amp: dtype must be float16 or bfloat16, got {wanted}")
        self._amp_dtype = wanted if mode else None

    @contextmanager
    def precision(self) -> Iterator[None]:
        """The mode in which `build` is traced."""
        dtype = self._amp_dtype
        if dtype is None:
            yield
            return
        with autocast("cpu", dtype), autocast("cuda", dtype):
            yield

    def set_gradient_accumulation_steps(self, value: int) -> None:
        """Cuts each call's batch (dim 0 of every input) in `value` micro-batches; the gradient
        is their mean.
        """
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"gradient accumulation steps must be an integer >= 1, got {value!r}")
        self.num_pieces = value

    def set_outputs_buffer_size(self, value: int = 2) -> None:
        """Changes nothing here: outputs are copies of their own, of which any number may live."""
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"outputs buffer size must be an integer >= 1, got {value!r}")

    def enable_straighten_algorithm(self, mode: str = "MemoryFirst") -> None:
        """Choose the order of ops: one of "Disable", "SpeedFirst", "MemoryFirst", "OverlapCpuGpu",
        "DelayShortGpu".
        """
        if mode not in ORDER_MODES:
            raise AssertionError(
                f"please choose one of {', '.join(ORDER_MODES)} as straighten mode, got {mode!r}"
            )
        self.order_mode = mode

    def enable_auto_parallel(self, mode: bool = True) -> None:
        """Ops whose layout the user left open get the one that computes and moves least, not the
        one that follows what the user gave.
        """
        self.auto_parallel = bool(mode)

    def __repr__(self) -> str:
        return f"(CONFIG:config:GraphConfig(training={self.training}, ))"


HINTS = (
    "allow_fuse_model_update_ops",
    "allow_fuse_add_to_output",
    "allow_fuse_cast_scale",
    "enable_fused_model_update_cast",
    "enable_multi_tensor_update",
    "enable_cudnn_conv_heuristic_search_algo",
    "enable_compress_memory",
    "enable_choose_best_memory_allocation",
    "enable_auto_parallel_trunk_algo",
    "enable_auto_parallel_sbp_collector",
    "set_auto_parallel_computation_cost_ratio",
    "set_auto_parallel_wait_time",
)
"""Options that upstream lets users tune and the compiler here decides by itself: fusion, the
search for offsets and its effort. Results do not depend on any of them."""


def _hint(name: str) -> Any:
    def remember(self: GraphConfig, value: object = True) -> None:
        self.hints[name] = value

    remember.__name__ = name
    remember.__doc__ = "Accepted and kept in `hints`; the compiler decides this by itself."
    return remember


for _name in HINTS:
    setattr(GraphConfig, _name, _hint(_name))
