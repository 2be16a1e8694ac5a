"""`torch.distributed.pipelining`: a rank runs one stage of a model, micro-batch by micro-batch.

Activations go to the next rank and gradients to the one before; what is sent is sent beside the
next computation. `nn.Graph` compiles whole pipelines (`config.set_stage`); here each rank has its
own part of the model alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from oneflow import comm
from oneflow.autograd.api import backward
from oneflow.core.config import current_config
from oneflow.core.errors import CallError, OneFlowError
from oneflow.distributed.arguments import Channel
from oneflow.distributed.process_groups import ProcessGroup, Work, line_of, one_way, rank_of
from oneflow.functional.joining import cat, chunk
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor

__all__ = [
    "PipelineStage",
    "Schedule1F1B",
    "ScheduleGPipe",
    "SplitPoint",
    "pipeline",
]


class PipelineStage:
    """One part of a model, on this rank.

    stage_index, num_stages: its number, and how many there are.  group: its ranks, one a stage;
    None: all.  device, input_args, output_args: accepted; the first micro-batch tells.
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

    def rank(self, stage: int) -> int:
        """Return the rank in the job that runs a stage."""
        return rank_of(self.group, stage)


class _Passes:
    """The micro-batches of one step on their way through a stage."""

    def __init__(self, stage: PipelineStage, loss_fn: Callable[..., Tensor] | None, count: int):
        self.stage, self.loss_fn, self.count = stage, loss_fn, count
        self.inputs: dict[int, tuple[Tensor, ...]] = {}
        self.results: dict[int, tuple[Tensor, ...]] = {}
        self.losses: list[Tensor] = []
        self.outputs: list[Any] = []
        self._sent: list[Work] = []

    def forward(
        self, at: int, given: tuple[Any, ...], kwargs: dict[str, Any], target: object
    ) -> None:
        """Run the stage on one micro-batch."""
        stage = self.stage
        if not stage.is_first:
            given = self._hear(stage.stage_index - 1)
            for x in given:
                x.requires_grad_(x.dtype.is_floating_point)
        made = stage.submod(*given, **kwargs)
        results = made if isinstance(made, tuple) else (made,)
        self.inputs[at], self.results[at] = given, results
        if stage.is_last:
            self.outputs.append(made)
            if self.loss_fn is not None:
                self.losses.append(self.loss_fn(made, target))
        else:
            self._tell(stage.stage_index + 1, [x.detach() for x in results])

    def backward(self, at: int) -> None:
        """Run the backward pass of one micro-batch; gradients are means over micro-batches."""
        stage = self.stage
        given, results = self.inputs.pop(at), self.results.pop(at)
        if stage.is_last:
            backward(self.losses[at] / self.count)
        else:
            grads = self._hear(stage.stage_index + 1)
            wanted = [x for x in results if x.requires_grad]
            backward(wanted, list(grads))
        if not stage.is_first:
            self._tell(stage.stage_index - 1, [x.grad for x in given if x.requires_grad])

    def end(self) -> None:
        """Wait until all is sent."""
        for work in self._sent:
            work.wait()

    def _hear(self, stage: int) -> tuple[Tensor, ...]:
        source, me = self.stage.rank(stage), current_config().rank
        way = one_way(source, me, self.stage.group, "pipelining", 0)
        count = line_of(way).now(lambda: comm.recv_object(source, ranks=way))
        return tuple(line_of(way).now(lambda: comm.recv(source, ranks=way)) for _ in range(count))

    def _tell(self, stage: int, values: Sequence[Tensor | None]) -> None:
        target, me = self.stage.rank(stage), current_config().rank
        way = one_way(me, target, self.stage.group, "pipelining", 0)
        listed = [x.contiguous() for x in values if x is not None]
        count = len(listed)
        self._sent.append(
            Work(line_of(way).later(lambda: comm.send_object(count, target, ranks=way)))
        )
        for x in listed:
            call = _sender(x, target, way)
            self._sent.append(Work(line_of(way).later(call)))


def _sender(x: Tensor, target: int, way: Channel) -> Callable[[], None]:
    return lambda: comm.send(x, target, ranks=way)


class _Schedule(ABC):
    """The order in which a stage runs its micro-batches.

    n_microbatches: parts of the batch, along dim 0.  loss_fn: `loss_fn(output, target)` of the last
    stage; None: forward passes alone.
    """

    def __init__(
        self,
        stage: PipelineStage,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        *_: object,
        scale_grads: bool = True,
        **__: object,
    ) -> None:
        if n_microbatches < 1:
            raise CallError(f"n_microbatches must be at least 1, got {n_microbatches}")
        self._stage, self._count, self._loss_fn = stage, n_microbatches, loss_fn
        self._scale = n_microbatches if scale_grads else 1
        self._trains = loss_fn is not None

    @abstractmethod
    def _order(self) -> Iterator[tuple[str, int]]:
        """("forward" or "backward", number of the micro-batch), one after the other."""

    def step(
        self,
        *args: object,
        target: object = None,
        losses: list[Tensor] | None = None,
        **kwargs: object,
    ) -> Any:
        """Run all micro-batches of a batch. Only the first stage is given inputs, only the last a
        target; the last returns the outputs. losses: gets those of the micro-batches.
        """
        trains = self._trains or target is not None
        return self._run(args, kwargs, target, losses, trains)

    def eval(self, *args: object, target: object = None, **kwargs: object) -> Any:
        """Run forward passes alone."""
        return self._run(args, kwargs, target, None, False)

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
        work = _Passes(self._stage, self._loss_fn if trains else None, self._scale)
        for kind, at in self._order():
            if kind == "forward":
                here = {name: parts[at] for name, parts in named.items()}
                work.forward(at, tuple(x[at] for x in given), here, targets[at])
            elif trains:
                work.backward(at)
        work.end()
        if losses is not None:
            losses[:] = [x.detach() for x in work.losses]
        if not self._stage.is_last:
            return None
        outputs = work.outputs
        return cat(outputs, dim=0) if isinstance(outputs[0], Tensor) else outputs


def _parts(x: object, count: int) -> Sequence[Any]:
    if not isinstance(x, Tensor):
        return [x] * count
    found: Sequence[Tensor] = chunk(x, count, 0)
    if len(found) != count:
        raise CallError(f"{x.shape[0]} rows cannot be cut into {count} micro-batches")
    return found


class ScheduleGPipe(_Schedule):
    """All forward passes, then all backward passes."""

    def _order(self) -> Iterator[tuple[str, int]]:
        yield from (("forward", i) for i in range(self._count))
        yield from (("backward", i) for i in range(self._count))


class Schedule1F1B(_Schedule):
    """A backward pass after each forward pass, once the stages behind are at work: a stage holds as
    many micro-batches as there are stages from it on.
    """

    def _order(self) -> Iterator[tuple[str, int]]:
        ahead = min(self._count, self._stage.num_stages - self._stage.stage_index - 1)
        yield from (("forward", i) for i in range(ahead))
        for i in range(ahead, self._count):
            yield "forward", i
            yield "backward", i - ahead
        yield from (("backward", i) for i in range(self._count - ahead, self._count))


class SplitPoint:
    """A place at which `pipeline` cuts: it is refused."""

    BEGINNING, END = 1, 2


def pipeline(*_: object, **__: object) -> NoReturn:
    """Refuse: a model is not cut by tracing it."""
    raise OneFlowError(
        "pipelining.pipeline: give each rank its part of the model, PipelineStage(part, index, "
        "count), or set stages of an nn.Graph"
    )
