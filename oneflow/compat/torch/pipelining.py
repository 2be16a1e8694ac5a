"""`torch.distributed.pipelining`: a rank runs stages of a model, micro-batch by micro-batch.

Activations go to the rank of the next stage and gradients to that of the one before; messages
are sent beside the next computation. `nn.Graph` compiles whole pipelines (`config.set_stage`); here
each rank has its own parts of the model alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from oneflow import comm
from oneflow.autograd.api import backward
from oneflow.compat.torch.pipeline_orders import (
    Pass,
    all_forward_first,
    as_soon_as_possible,
    folded,
    interleaved,
    looped,
    one_forward_one_backward,
)
from oneflow.core.config import current_config
from oneflow.core.errors import CallError, OneFlowError
from oneflow.distributed.arguments import Channel
from oneflow.distributed.process_groups import (
    ALL_RANKS,
    ProcessGroup,
    Work,
    line_of,
    one_way,
    rank_in,
    rank_of,
)
from oneflow.functional.concat_split import cat, chunk
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor

__all__ = [
    "PipelineScheduleMulti",
    "PipelineScheduleSingle",
    "PipelineStage",
    "Schedule1F1B",
    "ScheduleDualPipeV",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleLoopedBFS",
    "ScheduleZBVZeroBubble",
    "SplitPoint",
    "get_schedule_class",
    "pipeline",
]

FIRST_TAG = 1 << 20
"""Tags of the messages between stages begin here."""


class PipelineStage:
    """One part of a model, on this rank.

    stage_index, num_stages: its number, and how many there are.  group: its ranks, which take the
    stages in turn; None: all.  device, input_args, output_args: accepted; the first micro-batch
    tells.
    """

    def __init__(
        self,
        submodule: Module,
        stage_index: int,
        num_stages: int,
        device: object = None,
        input_args: object = None,
        output_args: object = None,
        group: ProcessGroup | None = None,
        dw_builder: object = None,
    ) -> None:
        if not 0 <= stage_index < num_stages:
            raise CallError(f"PipelineStage: there is no stage {stage_index} of {num_stages}")
        self.submod, self.stage_index, self.num_stages = submodule, stage_index, num_stages
        self.group = group
        self.is_first, self.is_last = stage_index == 0, stage_index == num_stages - 1

    @property
    def group_size(self) -> int:
        """The number of ranks."""
        return len((ALL_RANKS if self.group is None else self.group).ranks)

    @property
    def group_rank(self) -> int:
        """The number of this rank in the group."""
        return rank_in(self.group, current_config().rank)


class _Passes:
    """The micro-batches of one step on their way through the stages of this rank.

    ranks: the rank in the job of each stage.  scale: losses are divided by it.
    """

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        ranks: Sequence[int],
        loss_fn: Callable[..., Tensor] | None,
        scale: int,
    ) -> None:
        self.stages = {s.stage_index: s for s in stages}
        self.ranks, self.loss_fn, self.scale = ranks, loss_fn, scale
        self.losses: list[Tensor] = []
        self.outputs: list[Any] = []
        self._inputs: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self._results: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self._here: dict[tuple[int, int], deque[tuple[Tensor, ...]]] = {}
        self._sent: list[Work] = []

    def forward(
        self, key: int, at: int, given: tuple[Any, ...], kwargs: dict[str, Any], target: object
    ) -> None:
        """Run a stage on one micro-batch."""
        stage = self.stages[key]
        if not stage.is_first:
            given = self._hear(key - 1, key)
            for x in given:
                x.requires_grad_(x.dtype.is_floating_point)
        made = stage.submod(*given, **kwargs)
        results = made if isinstance(made, tuple) else (made,)
        self._inputs[key, at], self._results[key, at] = given, results
        if stage.is_last:
            self.outputs.append(made)
            if self.loss_fn is not None:
                self.losses.append(self.loss_fn(made, target))
        else:
            self._tell(key, key + 1, [x.detach() for x in results])

    def backward(self, key: int, at: int) -> None:
        """Run the backward pass of one micro-batch through a stage."""
        stage = self.stages[key]
        given, results = self._inputs.pop((key, at)), self._results.pop((key, at))
        if stage.is_last:
            backward(self.losses[at] / self.scale)
        else:
            grads = self._hear(key + 1, key)
            wanted = [x for x in results if x.requires_grad]
            backward(wanted, list(grads))
        if not stage.is_first:
            found = [x.grad for x in given if x.requires_grad]
            self._tell(key, key - 1, [x for x in found if x is not None])

    def end(self) -> None:
        """Wait until all is sent."""
        for work in self._sent:
            work.wait()

    def _channel(self, source: int, target: int) -> tuple[int, int, Channel]:
        group = next(iter(self.stages.values())).group
        src, dst = self.ranks[source], self.ranks[target]
        tag = FIRST_TAG + 2 * source + (target > source)
        return src, dst, one_way(src, dst, group, "pipelining", tag)

    def _hear(self, source: int, target: int) -> tuple[Tensor, ...]:
        if self.ranks[source] == self.ranks[target]:
            return self._here[source, target].popleft()
        src, _, way = self._channel(source, target)
        count = line_of(way).now(lambda: comm.recv_object(src, ranks=way))
        return tuple(line_of(way).now(lambda: comm.recv(src, ranks=way)) for _ in range(count))

    def _tell(self, source: int, target: int, values: Sequence[Tensor]) -> None:
        if self.ranks[source] == self.ranks[target]:
            self._here.setdefault((source, target), deque()).append(tuple(values))
            return
        _, dst, way = self._channel(source, target)
        listed = [x.contiguous() for x in values]
        count = len(listed)
        self._sent.append(Work(line_of(way).later(lambda: comm.send_object(count, dst, ranks=way))))
        for x in listed:
            self._sent.append(Work(line_of(way).later(_sender(x, dst, way))))


def _sender(x: Tensor, target: int, way: Channel) -> Callable[[], None]:
    return lambda: comm.send(x, target, ranks=way)


class _PipelineSchedule(ABC):
    """The order in which this rank runs its stages with micro-batches.

    n_microbatches: parts of the batch, along dim 0.  loss_fn: `loss_fn(output, target)` of the last
    stage; None: forward passes alone.  scale_grads: gradients are means over micro-batches.
    """

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None,
        scale_grads: bool,
    ) -> None:
        if n_microbatches < 1:
            raise CallError(f"n_microbatches must be at least 1, got {n_microbatches}")
        self._stages, self._count, self._loss_fn = list(stages), n_microbatches, loss_fn
        self._scale = n_microbatches if scale_grads else 1
        first = self._stages[0]
        self._places = self._place(first.num_stages, first.group_size)
        mine = [s for s, rank in enumerate(self._places) if rank == first.group_rank]
        if sorted(s.stage_index for s in self._stages) != mine:
            raise CallError(
                f"{type(self).__name__}: rank {first.group_rank} of {first.group_size} has stages "
                f"{mine} of {first.num_stages}, got {[s.stage_index for s in self._stages]}"
            )

    def _place(self, num_stages: int, num_ranks: int) -> list[int]:
        """The number in the group of each stage's rank."""
        return looped(num_stages, num_ranks)

    @abstractmethod
    def _order(self) -> list[Pass]:
        """The passes of this rank, one after the other."""

    def step(
        self,
        *args: object,
        target: object = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        **kwargs: object,
    ) -> Any:
        """Run all micro-batches of a batch. Only the rank of the first stage is given inputs, only
        that of the last a target; it returns the outputs, and gets in `losses` those of the
        micro-batches.
        """
        made = self._run(args, kwargs, target, losses, self._loss_fn is not None)
        return made if return_outputs else None

    def eval(
        self,
        *args: object,
        target: object = None,
        losses: list[Tensor] | None = None,
        **kwargs: object,
    ) -> Any:
        """Run forward passes alone."""
        return self._run(args, kwargs, target, losses, False)

    def _run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        target: object,
        losses: list[Tensor] | None,
        trains: bool,
    ) -> Any:
        given = [_parts(x, self._count) for x in args]
        named = {name: _parts(x, self._count) for name, x in kwargs.items()}
        targets = _parts(target, self._count)
        loss_fn = self._loss_fn if trains or target is not None else None
        ranks = [rank_of(self._stages[0].group, place) for place in self._places]
        work = _Passes(self._stages, ranks, loss_fn, self._scale)
        for is_forward, key, at in self._order():
            if is_forward:
                here = {name: parts[at] for name, parts in named.items()}
                work.forward(key, at, tuple(x[at] for x in given), here, targets[at])
            elif trains:
                work.backward(key, at)
        work.end()
        if losses is not None:
            losses[:] = [x.detach() for x in work.losses]
        outputs = work.outputs
        if not outputs:
            return None
        return cat(outputs, dim=0) if isinstance(outputs[0], Tensor) else outputs


def _parts(x: object, count: int) -> Sequence[Any]:
    if not isinstance(x, Tensor):
        return [x] * count
    found: Sequence[Tensor] = chunk(x, count, 0)
    if len(found) != count:
        raise CallError(f"{x.shape[0]} rows cannot be cut into {count} micro-batches")
    return found


class PipelineScheduleSingle(_PipelineSchedule):
    """A schedule of one stage a rank."""

    def __init__(
        self,
        stage: PipelineStage,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        *_: object,
        scale_grads: bool = True,
        **__: object,
    ) -> None:
        self._stage = stage
        super().__init__([stage], n_microbatches, loss_fn, scale_grads)


class ScheduleGPipe(PipelineScheduleSingle):
    """All forward passes, then all backward passes."""

    def _order(self) -> list[Pass]:
        return all_forward_first([self._stage.stage_index], self._count)


class Schedule1F1B(PipelineScheduleSingle):
    """A backward pass after each forward pass, once the stages behind are at work: a stage holds as
    many micro-batches as there are stages from it on.
    """

    def _order(self) -> list[Pass]:
        stage = self._stage
        return one_forward_one_backward(stage.stage_index, stage.num_stages, self._count)


class PipelineScheduleMulti(_PipelineSchedule):
    """A schedule of several stages a rank."""

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        *_: object,
        scale_grads: bool = True,
        **__: object,
    ) -> None:
        super().__init__(stages, n_microbatches, loss_fn, scale_grads)

    @property
    def _mine(self) -> list[int]:
        return sorted(s.stage_index for s in self._stages)


class ScheduleLoopedBFS(PipelineScheduleMulti):
    """All forward passes stage after stage, then all backward passes."""

    def _order(self) -> list[Pass]:
        return all_forward_first(self._mine, self._count)


class ScheduleInterleaved1F1B(PipelineScheduleMulti):
    """1F1B whose stages take turns on a rank. The micro-batches make whole rounds."""

    def _order(self) -> list[Pass]:
        first = self._stages[0]
        try:
            return interleaved(self._mine, first.group_rank, first.group_size, self._count)
        except ValueError as error:
            raise CallError(f"{type(self).__name__}: {error}") from None


class ScheduleInterleavedZeroBubble(ScheduleInterleaved1F1B):
    """The order of ScheduleInterleaved1F1B: the two halves of a backward pass stay together."""


class ScheduleZBVZeroBubble(PipelineScheduleMulti):
    """Two stages a rank, the first up to the last rank and the second back. The two halves of a
    backward pass stay together, so bubbles remain.
    """

    def _place(self, num_stages: int, num_ranks: int) -> list[int]:
        return folded(num_stages, num_ranks)

    def _order(self) -> list[Pass]:
        return as_soon_as_possible(self._places, self._count)[self._stages[0].group_rank]


class ScheduleDualPipeV(ScheduleZBVZeroBubble):
    """The order of ScheduleZBVZeroBubble: no two passes run beside each other."""


_SCHEDULES: dict[str, Any] = {
    "1f1b": Schedule1F1B,
    "gpipe": ScheduleGPipe,
    "interleaved1f1b": ScheduleInterleaved1F1B,
    "interleavedzerobubble": ScheduleInterleavedZeroBubble,
    "loopedbfs": ScheduleLoopedBFS,
    "zbvzerobubble": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
    "pipelineschedulesingle": PipelineScheduleSingle,
    "pipelineschedulemulti": PipelineScheduleMulti,
}


def get_schedule_class(schedule_name: str) -> type[_PipelineSchedule]:
    """Return the class of a schedule by its name, such as "1F1B" or "GPipe". Raises ValueError for
    others.
    """
    found: type[_PipelineSchedule] | None = _SCHEDULES.get(schedule_name.lower())
    if found is None:
        raise ValueError(f"Unknown schedule name {schedule_name!r}: one of {list(_SCHEDULES)}")
    return found


class SplitPoint:
    """A place at which `pipeline` cuts: it is refused."""

    BEGINNING, END = 1, 2


def pipeline(*_: object, **__: object) -> NoReturn:
    """Refuse: a model is not cut by tracing it."""
    raise OneFlowError(
        "pipelining.pipeline: give each rank its part of the model, PipelineStage(part, index, "
        "count), or set stages of an nn.Graph"
    )
