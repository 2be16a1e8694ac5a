"""`graph.config`: the settings by which a graph is compiled."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

from oneflow.core.dtype import DType, DTypeLike, bfloat16, dtype_of, float16
from oneflow.core.errors import ConfigError
from oneflow.core.job_config import (
    ADD_TO_OUTPUT,
    BUCKET_NBYTES,
    CAST_SCALE,
    ORDER_MODES,
    PIPELINES,
    AutoParallel,
    Zero,
)


class GraphConfig:
    """Settings of one nn.Graph; they count until its first call."""

    def __init__(self) -> None:
        self.num_pieces = 1
        self.order_mode = "MemoryFirst"
        self.pipeline = "1f1b"
        self.auto_parallel = False
        self.chooses_all = False
        self.stages = 1
        self.grid: tuple[int, ...] = ()
        self._search = AutoParallel()
        self._fits_memory = False
        self.compress_memory = False
        self.memory_limit: int | None = None
        self.bucket_nbytes = BUCKET_NBYTES
        self.best_offsets = True
        self.batch_updates: bool | None = None
        self.fused_update_cast = False
        self.unfused: set[str] = set()
        self.hints: dict[str, object] = {}
        self.training = False
        """True once an optimizer was added."""
        self.zero: Zero | None = None
        self.amp_dtype: DType | None = None

    def enable_amp(self, mode: bool = True, *, dtype: DTypeLike = float16) -> None:
        """Run the graph in mixed precision of float32 and `dtype`, float16 or bfloat16, as each op
        declares (oneflow/core/precision.py): products and convolutions in `dtype`, and the ops
        between them; losses and sums in float32. Raises ConfigError for another dtype, and for one
        in the place of `mode`.

        `build` sees the dtypes it would see without, and outputs have them. Parameters stay in
        float32; each is cast once a step. `flow._C.amp_white_identity` and `amp_black_identity` pin
        a value, `flow.autocast(enabled=False)` a block.
        """
        if isinstance(mode, DType):
            raise ConfigError(f"enable_amp: mode is True or False; write dtype={mode}")
        wanted = dtype_of(dtype)
        if wanted not in (float16, bfloat16):
            raise ConfigError(f"enable_amp: dtype must be float16 or bfloat16, got {wanted}")
        self.amp_dtype = wanted if mode else None

    def enable_zero(
        self,
        mode: bool = True,
        *,
        stage: int = 2,
        shard_min_size: int = 1024,
        shard_restore_level: int = 1,
    ) -> None:
        """Split the copies (SBP B) that ranks hold of a global parameter: in stage 1 the
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
        _check_integer(shard_min_size, 0, "enable_zero: shard_min_size")
        self.zero = Zero(stage, shard_min_size, shard_restore_level) if mode else None

    def set_zero_redundancy_optimizer_mode(self, mode: str = "distributed_split") -> None:
        """The name that `enable_zero` had: "distributed_split" is its stage 1, "non_distributed"
        turns it off.
        """
        if mode not in ("distributed_split", "non_distributed"):
            raise ConfigError(
                "set_zero_redundancy_optimizer_mode takes 'distributed_split' or "
                f"'non_distributed', got {mode!r}"
            )
        self.enable_zero(mode == "distributed_split", stage=1)

    def set_gradient_accumulation_steps(self, value: int) -> None:
        """Cuts each call's batch (dim 0 of every input) in `value` micro-batches; the gradient
        is their mean.
        """
        _check_integer(value, 1, "gradient accumulation steps")
        self.num_pieces = value

    def set_pipeline_schedule(self, schedule: str = "1f1b") -> None:
        """Choose the order in which pipeline stages (`set_stage`) work on micro-batches.

        "1f1b": stage i of p runs p - i micro-batches ahead, then backward and forward in turn, and
        keeps as many. Where ranks have several stages each, dealt out in rounds, these are
        interleaved.  "zero_bubble": gradients of weights wait until their stage would be idle,
        which takes up to two thirds of 1F1B's idle time; every stage then keeps p micro-batches,
        as the first one does with 1F1B. Each stage needs ranks of its own.
        """
        if schedule not in PIPELINES:
            raise ConfigError(
                f"set_pipeline_schedule takes one of {', '.join(map(repr, PIPELINES))}, "
                f"got {schedule!r}"
            )
        self.pipeline = schedule

    def enable_straighten_algorithm(self, mode: str = "MemoryFirst") -> None:
        """Choose the order of ops.

        "MemoryFirst": less memory is live at once, and reductions of gradients are done together.
        "SpeedFirst": a reduction begins as soon as its input is made.  "OverlapCpuGpu": reductions
        as "SpeedFirst", computing as "MemoryFirst".  "DelayShortGpu": as "SpeedFirst", and ops on
        few bytes wait for their first reader.  "Disable": as written.
        """
        if mode not in ORDER_MODES:
            raise AssertionError(
                f"please choose one of {', '.join(ORDER_MODES)} as straighten mode, got {mode!r}"
            )
        self.order_mode = mode

    def enable_auto_parallel(self, mode: bool = True, *, level: str = "layouts") -> None:
        """Lay out parameters, buffers, optimizer states and the results of ops so that a step takes
        the least time, by bytes moved and estimated time of computing.

        Layouts that `to_global` fixes stay, and outputs lie as they would without it. The `sbp` of
        parameters and buffers then changes at the first call, unless another graph works on them
        already; their values stay.

        level: "full" also chooses pipeline stages and the hierarchy of the ranks, where the program
        uses one placement; micro-batches, where the loss is a mean over rows that go their own ways
        (set_gradient_accumulation_steps sets their number); ZeRO, unless enable_zero sets it; and
        modules that are computed again, where nothing else fits in the memory. The first call
        decides, for all that follow; the parameters of a stage then lie on its ranks.
        """
        if level not in LEVELS:
            raise ConfigError(
                f"enable_auto_parallel: level must be one of {', '.join(map(repr, LEVELS))}, "
                f"got {level!r}"
            )
        self.auto_parallel = bool(mode)
        self.chooses_all = self.auto_parallel and level == "full"

    def enable_compress_memory(self, mode: bool = True) -> None:
        """Search longer for offsets in the memory of a step, where those found at once need more
        than the peak of live bytes: some seconds at most.
        """
        self.compress_memory = bool(mode)

    def set_memory_limit(self, nbytes: int | None) -> None:
        """Let modules be computed again in the backward pass, those that cost the least time for
        each byte first, until registers and scratch memory of every rank fit in `nbytes`.

        Parameters and optimizer states are not counted. If nothing fits, the first call raises
        GraphError, which names the least that is possible. `graph.memory_report()` names the
        chosen modules. None: no limit.
        """
        if nbytes is not None:
            _check_integer(nbytes, 1, "set_memory_limit: nbytes")
        self.memory_limit = nbytes

    @property
    def auto_parallel_settings(self) -> AutoParallel | None:
        """The settings of the search for layouts; None: there is none."""
        if not self.auto_parallel:
            return None
        search = replace(self._search, num_stages=self.stages, grid=self.grid)
        if self._fits_memory:
            return replace(search, memory_price=None, memory_nbytes=self.memory_limit)
        return search

    def enable_auto_parallel_ignore_user_sbp_config(self, mode: bool = True) -> None:
        """Let the search choose another SBP where the program calls `to_global`; placements stay.
        Without it layouts that `to_global` fixes stay.
        """
        self._search = replace(self._search, ignores_user=bool(mode))

    def set_auto_parallel_computation_cost_ratio(self, ratio: float = 0.05) -> None:
        """Weigh computing against moving bytes: 0.05 for its estimated seconds, more or less for
        more or less than these.
        """
        self._search = replace(self._search, computing_ratio=_positive(ratio, "ratio"))

    def set_auto_parallel_wait_time(self, cost: float = 1.65e4) -> None:
        """Set the wait before an exchange between ranks begins, in bytes that the link moves
        meanwhile. Without it the waits are those of the table of boxing.
        """
        self._search = replace(self._search, wait_nbytes=_positive(cost, "wait time"))

    def enable_auto_parallel_trunk_algo(self, mode: bool = True) -> None:
        """Count the waits of exchanges only along the trunk, the longest path of the graph, as the
        search does from the start: others wait while the trunk computes. False: count all.
        """
        self._search = replace(self._search, hides_waits=bool(mode))

    def enable_auto_parallel_sbp_collector(self, mode: bool = True) -> None:
        """Count a value that several ops want alike as moved once, as it is, and as the search does
        from the start. False: count it for each of them, which is quicker to search.
        """
        self._search = replace(self._search, shares_moves=bool(mode))

    def enable_auto_memory(self, mode: str = "AdaptiveMemory") -> None:
        """Let the search for layouts weigh memory: a mebibyte less on a rank is worth 1, 10 or 100
        microseconds of a step ("SlightMemoryDown", "ModerateMemoryDown", "HeavyMemoryDown"), or as
        few as are needed to fit ("AdaptiveMemory") in `set_memory_limit`, else in the memory of the
        machine. "Disable": nothing.
        """
        if mode not in AUTO_MEMORY_MODES:
            raise AssertionError(
                f"please choose one of {', '.join(AUTO_MEMORY_MODES)} as auto memory mode, "
                f"got {mode!r}"
            )
        self._fits_memory = mode == "AdaptiveMemory"
        self._search = replace(self._search, memory_price=AUTO_MEMORY_MODES[mode])

    def enable_overlap(self, mode: bool = True, *, bucket_nbytes: int = BUCKET_NBYTES) -> None:
        """Reduces gradients while the backward pass goes on, as is done unless it is switched off:
        in buckets, each as soon as its last gradient is there. ZeRO's gathers begin two ops ahead.
        Between hosts kernels then run in a thread of their own, so that every exchange runs beside
        them.

        bucket_nbytes: a rank's bytes of a bucket, >= 1. Gradients that ZeRO splits, or
        micro-batches add up, go in smaller ones, an eighth of all, so that few gradients are held
        whole.
        """
        _check_integer(bucket_nbytes, 1, "enable_overlap: bucket_nbytes")
        self.bucket_nbytes = bucket_nbytes if mode else 0

    def allow_fuse_add_to_output(self, mode: bool = True) -> None:
        """Let an addition join the kernel that makes one of its terms, as is done unless it is
        switched off.
        """
        self._allow(ADD_TO_OUTPUT, mode)

    def allow_fuse_cast_scale(self, mode: bool = True) -> None:
        """Let a cast and a scaling by a number, of which one reads the other, share a kernel, as is
        done unless it is switched off.
        """
        self._allow(CAST_SCALE, mode)

    def _allow(self, kind: str, mode: bool) -> None:
        if mode:
            self.unfused.discard(kind)
        else:
            self.unfused.add(kind)

    def enable_multi_tensor_update(self, mode: bool = True) -> None:
        """Update all parameters of an optimizer in one call, in compiled loops also where they are
        small; False: each by itself.

        Unless it is set, updates share a call on a GPU and not on a CPU: all gradients are live at
        once then.
        """
        self.batch_updates = bool(mode)

    def enable_fused_model_update_cast(self, mode: bool = True) -> None:
        """Keep half floats of parameters from step to step, if `enable_amp` is on: their updates
        write them in the same pass, instead of a cast of each at the start of a step.

        They take two bytes for each number. SGD, Adam and AdamW do it in one kernel (without a fed
        momentum), other optimizers with a cast after the update. A write to a parameter between two
        steps is seen, but not one to an array that shares its memory (`numpy`).
        """
        self.fused_update_cast = bool(mode)

    def enable_choose_best_memory_allocation(self, mode: bool = True) -> None:
        """Place the temporaries of a step in several orders and keep the best, as is done unless it
        is switched off. False: in one order.
        """
        self.best_offsets = bool(mode)

    # ---- options that change nothing -------------------------------------------------------------

    def _note(self, name: str, value: object, why: str) -> None:
        """Keep an option in `hints`, and say once that it changes nothing, unless it is off."""
        self.hints[name] = value
        if value and value != "Disable" and name not in _said:
            _said.add(name)
            warnings.warn(f"graph.config.{name} changes nothing here: {why}", stacklevel=3)

    def set_outputs_buffer_size(self, value: int = 2) -> None:
        """Changes nothing here: outputs are copies of their own, of which any number may live."""
        _check_integer(value, 1, "outputs buffer size")
        why = "each output is a copy of its own, of which any number may live"
        self._note("set_outputs_buffer_size", value != 2 and value, why)

    def allow_fuse_model_update_ops(self, mode: bool = True) -> None:
        """Changes nothing here: an update is one op that scales, decays and writes, always."""
        why = "an update is always one op that scales, decays and writes in one pass"
        self._note("allow_fuse_model_update_ops", not mode, why)

    def enable_cudnn_conv_heuristic_search_algo(self, mode: bool = True) -> None:
        """Changes nothing here: cuDNN's own estimates choose among its kernels."""
        why = "cuDNN's own estimates choose among its kernels"
        self._note("enable_cudnn_conv_heuristic_search_algo", mode, why)

    def __repr__(self) -> str:
        return f"(CONFIG:config:GraphConfig(training={self.training}, ))"


LEVELS = ("layouts", "full")
"""The extents of what auto-parallel chooses."""

AUTO_MEMORY_MODES = {
    "Disable": 0.0,
    "SlightMemoryDown": 1e-12,
    "ModerateMemoryDown": 1e-11,
    "HeavyMemoryDown": 1e-10,
    "AdaptiveMemory": 0.0,
}
"""Modes of `enable_auto_memory`, and the seconds that a byte less is worth."""

_said: set[str] = set()
"""Options whose warning was given in this process."""


def _check_integer(value: object, least: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{what} must be an integer >= {least}, got {value!r}")


def _positive(value: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"auto-parallel {name} must be a finite number above 0, got {value!r}")
    return float(value)
