"""`graph.config`: what a user sets about how a graph is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from oneflow.amp.autocasting import autocast
from oneflow.core.dtype import DType, DTypeLike, bfloat16, dtype_of, float16
from oneflow.core.errors import ConfigError
from oneflow.core.job_config import ORDER_MODES
from oneflow.graph.zero import Zero


class GraphConfig:
    """Settings of one nn.Graph; they count until its first call."""

    def __init__(self) -> None:
        self.num_pieces = 1
        self.order_mode = "MemoryFirst"
        self.auto_parallel = False
        self.hints: dict[str, object] = {}
        self._training = False
        self.zero: Zero | None = None
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

    def enable_zero(
        self,
        mode: bool = True,
        *,
        stage: int = 2,
        shard_min_size: int = 1024,
        shard_restore_level: int = 1,
    ) -> None:
        """Splits what ranks hold as copies (SBP B) of a global parameter: in stage 1 the
        optimizer's states, in stage 2 the gradients, too, in stage 3 the parameters as well, whose
        `sbp` then changes at the first call.

        shard_min_size: parameters of fewer elements stay copies.  shard_restore_level: how ops read
        a split parameter: 0 as it lies or gathered, whichever the layouts suggest; 1, 2 gathered.
        """
        if stage not in (1, 2, 3):
            raise ConfigError(f"enable_zero: stage must be 1, 2 or 3, got {stage!r}")
        if shard_restore_level not in (0, 1, 2):
            raise ConfigError(
                f"enable_zero: shard_restore_level must be 0, 1 or 2, got {shard_restore_level!r}"
            )
        if not isinstance(shard_min_size, int) or shard_min_size < 0:
            raise ConfigError(
                f"enable_zero: shard_min_size must be an integer >= 0, got {shard_min_size!r}"
            )
        self.zero = Zero(stage, shard_min_size, shard_restore_level) if mode else None

    def set_zero_redundancy_optimizer_mode(self, mode: str = "distributed_split") -> NoReturn:
        """Raises ConfigError: `enable_zero` has taken its place."""
        raise ConfigError(
            "set_zero_redundancy_optimizer_mode was replaced; call "
            "config.enable_zero(True, stage=1) instead"
        )

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
    def remember(self: GraphConfig, value: object = True, **given: object) -> None:
        self.hints[name] = given.get("mode", given.get("ratio", given.get("cost", value)))

    remember.__name__ = name
    remember.__doc__ = "Accepted and kept in `hints`; the compiler decides this by itself."
    return remember


for _name in HINTS:
    setattr(GraphConfig, _name, _hint(_name))
