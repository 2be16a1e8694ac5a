"""The configuration of a compile: how to compile the graph, and for which machines."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from oneflow.core.errors import ConfigError

ORDER_MODES = ("MemoryFirst", "SpeedFirst", "OverlapCpuGpu", "DelayShortGpu", "Disable")
BUCKET_NBYTES = 8 << 20
PIPELINES = ("1f1b", "zero_bubble")

CAST_SCALE, ADD_TO_OUTPUT = "cast_scale", "add_to_output"
"""Kinds of fusion that may be switched off: of a cast with a scaling that one of them reads, and of
an addition with the op that makes one of its terms."""

_T = TypeVar("_T", bound="JobConfig | Cluster")


@dataclass(frozen=True)
class BindOptions:
    """The ways to bind a plan to a rank: its kernels and scratch memory.

    thorough: search for a smaller scratch memory where the plan of it is not the least possible.
    best_offsets: try several orders of placing temporaries in it; else the first is taken.
    batch_updates: all updates of an optimizer are one call; None: on a GPU, unless thorough.
    unfused: kinds of fusion (CAST_SCALE, ADD_TO_OUTPUT) that are not done.
    overlap: between hosts, exchanges run beside kernels.
    """

    thorough: bool = False
    best_offsets: bool = True
    batch_updates: bool | None = None
    unfused: tuple[str, ...] = ()
    overlap: bool = True

    def batches(self, device: str) -> bool:
        """Whether updates on a kind of device share calls."""
        if device not in ("cpu", "cuda"):
            return False  # a batch is machine code, which other kinds have no compiler for
        if self.batch_updates is not None:
            return self.batch_updates
        return device == "cuda" and not self.thorough


DEFAULT = BindOptions()


@dataclass(frozen=True)
class AutoParallel:
    """The settings of the search for layouts.

    computing_ratio: weight of computing, 0.05 for its estimated seconds.  wait_nbytes: bytes that
    could be moved in the time that each exchange waits; None: as the table of boxing has it.
    hides_waits: exchanges beside the longest path of the graph cost no waiting.  shares_moves: a
    tensor that several readers want alike is counted as moved once.  ignores_user: layouts of
    to_global do not bind.  memory_price: seconds that a byte less at the peak is worth; None: as
    few as are needed to fit in `memory_nbytes` on each rank besides variables, or in its share of a
    host.

    num_stages: of the pipeline that a graph of one placement becomes, each of equally many of its
    ranks.  grid: hierarchy of the ranks of each stage; (): they are in a row.
    """

    computing_ratio: float = 0.05
    wait_nbytes: float | None = None
    hides_waits: bool = True
    shares_moves: bool = True
    ignores_user: bool = False
    memory_price: float | None = 0.0
    memory_nbytes: int | None = None
    num_stages: int = 1
    grid: tuple[int, ...] = ()


@dataclass(frozen=True)
class Zero:
    """The settings of ZeRO.

    stage: 1 to 3.  min_size: parameters of fewer elements stay copies.  restore_level: how a split
    parameter is read: 0 as the layouts suggest, 1 and 2 gathered.
    """

    stage: int
    min_size: int = 1024
    restore_level: int = 1


SCALE, TRACKER = "System-GradScaler-scale", "System-GradScaler-growth_tracker"
SKIPPED = "System-GradScaler-skipped."
"""Names of a gradient scaler's variables; the last one goes on with the optimizer's number."""


@dataclass(frozen=True)
class Scaling:
    """The factors of a gradient scaler: by which its scale grows after `interval` finite steps, and
    by which it shrinks after one that is not."""

    growth: float
    backoff: float
    interval: int


@dataclass(frozen=True)
class JobConfig:
    """The ways to compile and run one graph. Plain values only: it travels as JSON.

    num_pieces: micro-batches per step.  order_mode: one of ORDER_MODES.  auto_parallel: search
    for the layouts with the least time of a step; None: ops follow the SBPs that the user gave.

    fuse_boxing: moves of one level between the same ranks share an actor, but for the kinds in
    `unfused_boxing`; kinds apart if not `mix_boxing`; of at most `fusion_nbytes` bytes and
    `fusion_ops` tensors (0: no limit).

    bucket_nbytes: a rank's bytes of gradients that are reduced in one go, while the backward pass
    goes on; 0: all of them after it.

    lower_all_reduce: all_reduces are calls of the backend that eager code uses, where they can be.

    compress_memory: search for an order of ops and for offsets that need less memory, for some
    seconds if need be.

    pipeline: one of PIPELINES, the order in which the stages of a pipeline work on micro-batches.

    best_offsets, batch_updates, unfused: see BindOptions.

    amp: the half dtype of mixed precision; "": there is none.  casts_in_updates: half floats of
    parameters live from step to step.  zero, scaling: see there; None: there is none.  recomputed:
    paths of the modules that the backward pass computes again.  means: numbers of the outputs that
    are means over the rows of a batch, so also over its micro-batches.
    """

    name: str
    num_pieces: int = 1
    order_mode: str = "MemoryFirst"
    auto_parallel: AutoParallel | None = None
    fuse_boxing: bool = True
    unfused_boxing: tuple[str, ...] = ()
    mix_boxing: bool = True
    fusion_nbytes: int = 0
    fusion_ops: int = 0
    bucket_nbytes: int = BUCKET_NBYTES
    lower_all_reduce: bool = False
    compress_memory: bool = False
    pipeline: str = "1f1b"
    best_offsets: bool = True
    batch_updates: bool | None = None
    unfused: tuple[str, ...] = ()
    amp: str = ""
    casts_in_updates: bool = False
    zero: Zero | None = None
    scaling: Scaling | None = None
    recomputed: tuple[str, ...] = ()
    means: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_pieces < 1:
            raise ConfigError(f"num_pieces must be at least 1, got {self.num_pieces}")
        if self.order_mode not in ORDER_MODES:
            raise ConfigError(
                f"order_mode must be one of {', '.join(ORDER_MODES)}, got {self.order_mode!r}"
            )
        if self.bucket_nbytes < 0:
            raise ConfigError(
                f"bucket_nbytes must be 0 (no buckets) or more, not {self.bucket_nbytes}"
            )
        if self.pipeline not in PIPELINES:
            raise ConfigError(
                f"pipeline must be one of {', '.join(PIPELINES)}, got {self.pipeline!r}"
            )
        if min(self.fusion_nbytes, self.fusion_ops) < 0:
            raise ConfigError(
                f"fusion_nbytes ({self.fusion_nbytes}) and fusion_ops ({self.fusion_ops}) must be "
                "0 (no limit) or more"
            )

    @property
    def binding(self) -> BindOptions:
        """The ways to bind its plan."""
        return BindOptions(
            self.compress_memory,
            self.best_offsets,
            self.batch_updates,
            self.unfused,
            self.bucket_nbytes > 0,
        )

    def to_bytes(self) -> bytes:
        return _encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> JobConfig:
        """The inverse of `to_bytes`. Raises ConfigError for unknown fields or wrong types."""
        return _decode(cls, data)


@dataclass(frozen=True)
class Overrides:
    """The settings of a submission that take the place of those in its job file.

    auto_parallel: search for layouts.  zero: stage of ZeRO.  amp: half dtype of mixed precision.
    A setting of False, 0 or "" stays as the file says.
    """

    auto_parallel: bool = False
    zero: int = 0
    amp: str = ""

    def of(self, config: JobConfig) -> JobConfig:
        """The configuration with these settings."""
        search = AutoParallel() if self.auto_parallel else None
        return replace(
            config,
            auto_parallel=config.auto_parallel or search,
            zero=Zero(self.zero) if self.zero else config.zero,
            amp=self.amp or config.amp,
        )


NO_OVERRIDES = Overrides()


@dataclass(frozen=True)
class Cluster:
    """The ranks a job runs on.  hosts: of every rank; ranks with one host name share memory."""

    world_size: int
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ConfigError(f"world_size must be at least 1, got {self.world_size}")
        if not self.hosts:
            object.__setattr__(self, "hosts", ("localhost",) * self.world_size)
        if len(self.hosts) != self.world_size:
            raise ConfigError(
                f"{len(self.hosts)} hosts given for {self.world_size} ranks; "
                "give one host name per rank"
            )

    def to_bytes(self) -> bytes:
        return _encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Cluster:
        """The inverse of `to_bytes`. Raises ConfigError for unknown fields or wrong types."""
        return _decode(cls, data)


def _encode(value: object) -> bytes:
    import msgspec

    return msgspec.json.encode(value)


def _decode(cls: type[_T], data: bytes) -> _T:
    import msgspec

    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        unknown = sorted(fields.keys() - {f.name for f in dataclasses.fields(cls)})
        if unknown:
            raise ConfigError(f"{cls.__name__} has no field {', '.join(unknown)}")
        return msgspec.convert(fields, cls)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"not a {cls.__name__}: {error}") from error
