"""What the examples share: layouts (which rank holds what), progress lines, and reports.

A layout answers three questions and nothing else: where a stage of the model lives (`placement`),
how a batch is cut (`batch_sbp`) and how a weight is cut (`weight_sbp`). Models and training loops
are the same in every layout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import oneflow as flow
from oneflow import nn

LAYOUTS = ("single", "dp", "tp", "pp", "2d")
Array = np.ndarray[Any, Any]


class ColumnLinear(nn.Linear):
    """A linear layer whose output features are divided between ranks; its input is whole."""

    split_dims = {"weight": 0, "bias": 0}


class RowLinear(nn.Linear):
    """A linear layer whose input features are divided; its output is a sum over the ranks."""

    split_dims = {"weight": 1}


@dataclass(frozen=True)
class Layout:
    """Who holds what.

    stages: the placement of each pipeline stage (one, unless name is "pp").  readers: the ranks
    that read results.  data_axis, tensor_axis: the hierarchy axis that cuts batches or weights,
    None where none does.  data_parts: parts a batch is cut into; this rank has part data_index.
    micro_batches: pieces in which one step's batch passes the pipeline.
    """

    name: str
    stages: tuple[flow.placement, ...]
    readers: flow.placement
    data_axis: int | None = None
    tensor_axis: int | None = None
    data_parts: int = 1
    data_index: int = 0
    micro_batches: int = 1

    def placement(self, stage: int) -> flow.placement:
        """Where a stage lives; counts from the end if negative."""
        return self.stages[min(stage, len(self.stages) - 1)]

    def _sbp(self, axis: int | None, dim: int | None) -> list[flow.sbp.sbp]:
        sbp = [flow.sbp.broadcast] * self.stages[0].ranks.ndim
        if axis is not None and dim is not None:
            sbp[axis] = flow.sbp.split(dim)
        return sbp

    @property
    def batch_sbp(self) -> list[flow.sbp.sbp]:
        return self._sbp(self.data_axis, 0)

    @property
    def whole(self) -> list[flow.sbp.sbp]:
        return self._sbp(None, None)

    def weight_sbp(self, dim: int | None) -> list[flow.sbp.sbp]:
        """Of a weight that tensor parallelism may split along `dim`; None: whole on every rank."""
        return self._sbp(self.tensor_axis, dim)

    def feed(self, batch: Array, stage: int) -> flow.Tensor:
        """A batch as a global tensor on a stage; each rank hands over its own rows only."""
        rows = len(batch) // self.data_parts
        mine = batch[self.data_index * rows : (self.data_index + 1) * rows]
        local = flow.from_numpy(np.ascontiguousarray(mine))
        return local.to_global(self.placement(stage), self.batch_sbp, check_meta=False)

    def feed_whole(self, array: Array, stage: int) -> flow.Tensor:
        """The same array on every rank of a stage."""
        local = flow.from_numpy(np.ascontiguousarray(array))
        return local.to_global(self.placement(stage), self.whole, check_meta=False)

    def everywhere(self, tensor: flow.Tensor) -> flow.Tensor:
        """In a graph: the whole tensor on each rank of the world, so that any rank may read it."""
        sbp = [flow.sbp.broadcast] * self.readers.ranks.ndim
        return tensor.to_global(placement=self.readers, sbp=sbp)

    def place(self, stages: Sequence[nn.Module]) -> None:
        """Moves modules to their stages and cuts the weights that say how.

        The values are the same in every layout: each rank made the whole weight, with one seed,
        and keeps its part of it.
        """
        for number, module in enumerate(stages):
            for owner in module.modules():
                self._place_own(owner, self.placement(number))

    def _place_own(self, owner: nn.Module, placement: flow.placement) -> None:
        split_dims = getattr(owner, "split_dims", {})
        for name, parameter in list(owner.named_parameters(recurse=False)):
            whole = parameter.detach().to_global(placement, self.whole)
            sbp = self.weight_sbp(split_dims.get(name))
            setattr(owner, name, nn.Parameter(whole.to_global(sbp=sbp)))
        for name, buffer in list(owner.named_buffers(recurse=False)):
            setattr(owner, name, buffer.to_global(placement, self.whole))

    def set_stages(self, stages: Sequence[Any]) -> None:
        """In a graph's constructor: which module belongs to which pipeline stage."""
        if len(self.stages) > 1:
            for number, module in enumerate(stages):
                module.to(nn.graph.GraphModule).set_stage(number, self.placement(number))


def read(tensor: flow.Tensor) -> Array:
    """The value of a graph output that is whole on this rank."""
    array: Array = tensor.to_local().numpy()
    return array


def add_arguments(parser: argparse.ArgumentParser, *, batch_size: int, lr: float) -> None:
    """The options every example has."""
    parser.add_argument(
        "--parallel",
        choices=LAYOUTS,
        help="who holds what; default: dp if there are several ranks, else single",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--batch-size", type=positive, default=batch_size, help="of one step, all ranks"
    )
    parser.add_argument("--lr", type=float, default=lr, help="highest learning rate")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first weights and the order of data"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write losses and figures here")
    parser.add_argument(
        "--save", type=Path, metavar="DIR", help="write a checkpoint here at the end"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="go on from a checkpoint; any layout will do"
    )


def positive(text: str) -> int:
    """Type of an option that counts things. Raises what argparse turns into a message."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def make_layout(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Layout:
    """The layout asked for, or an error that says how to start it."""
    world = flow.env.get_world_size()
    name = args.parallel or ("dp" if world > 1 else "single")
    layout = _layout(name, world, args.device, parser)
    pieces = layout.data_parts * layout.micro_batches
    if args.batch_size % pieces:
        parser.error(
            f"--batch-size {args.batch_size} cannot be cut into {layout.data_parts} data parts x "
            f"{layout.micro_batches} micro-batches; use a multiple of {pieces}"
        )
    return layout


def _layout(name: str, world: int, device: str, parser: argparse.ArgumentParser) -> Layout:
    wanted = {"single": world == 1, "dp": True, "tp": True, "pp": world % 2 == 0, "2d": world == 4}
    if not wanted[name]:
        need, number = {"single": ("exactly 1 rank", 1), "pp": ("an even number of ranks", 2)}.get(
            name, ("exactly 4 ranks (2 for data x 2 for tensors)", 4)
        )
        parser.error(
            f"--parallel {name} needs {need}, but there {'is' if world == 1 else 'are'} {world}; "
            f"start it with python -m oneflow.distributed.launch --nproc_per_node {number} "
            f"{sys.argv[0]} --parallel {name}"
        )
    rank = flow.env.get_rank()
    every = flow.placement(device, list(range(world)))
    if name == "2d":
        grid = flow.placement(device, [[0, 1], [2, 3]])
        return Layout(name, (grid,), grid, 0, 1, data_parts=2, data_index=rank // 2)
    if name == "pp":
        half = world // 2
        stages = tuple(
            flow.placement(device, list(range(s * half, (s + 1) * half))) for s in (0, 1)
        )
        return Layout(name, stages, every, 0, None, half, rank % half, micro_batches=4)
    if name == "tp":
        return Layout(name, (every,), every, None, 0)
    return Layout(name, (every,), every, 0, None, world, rank)


class Progress:
    """Steps as a bar on a terminal, else as one line an interval; on rank 0 only."""

    def __init__(self, total: int, unit: str, start: int = 0, interval_s: float = 2.0) -> None:
        self.total, self.unit, self.done = total, unit, start
        self.interval_s, self.printed = interval_s, time.monotonic()
        self.speaks = flow.env.get_rank() == 0
        terminal = self.speaks and sys.stderr.isatty()
        self.bar = tqdm(total=total, initial=start, unit=unit) if terminal else None

    def step(self, **values: float) -> None:
        """One more step is done; values: what to show beside it."""
        self.done += 1
        text = " ".join(
            f"{name} {value:.{4 if value < 100 else 0}f}" for name, value in values.items()
        )
        if self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update()
        elif self.speaks and self._is_due():
            print(f"{self.unit} {self.done}/{self.total} {text}", flush=True)

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now - self.printed < self.interval_s and self.done < self.total:
            return False
        self.printed = now
        return True

    def say(self, line: str) -> None:
        """A line above the bar, if there is one."""
        if self.bar is not None:
            self.bar.write(line)
        elif self.speaks:
            print(line, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class Clock:
    """Times steps; the first one holds the compilation and is kept apart."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = time.perf_counter()

    def restart(self) -> None:
        """Forget what happened since the last step: evaluation, printing."""
        self._last = time.perf_counter()

    def step(self) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now

    @property
    def steady_s(self) -> float:
        """Median of all steps but the first; 0.0 where there is none."""
        return float(np.median(self.seconds[1:])) if len(self.seconds) > 1 else 0.0

    @property
    def compile_s(self) -> float:
        """How much longer the first step took than a usual one."""
        return max(0.0, self.seconds[0] - self.steady_s) if self.seconds else 0.0

    def per_second(self, amount: float) -> float:
        """amount: done in one step. The rate over all steps but the first."""
        rest = sum(self.seconds[1:])
        return amount * len(self.seconds[1:]) / rest if rest else 0.0


def write_json(path: Path | None, report: dict[str, Any]) -> None:
    """Rank 0 writes the report, if one was asked for."""
    if path is not None and flow.env.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")


CHECKPOINT = "checkpoint.safetensors"


def save_checkpoint(graph: nn.Graph, folder: Path | None, done: int) -> None:
    """Weights, optimizer states and step count of a graph, and how many units of work are done."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    state = {"done": done, "graph": graph.state_dict()}
    flow.save(state, folder / CHECKPOINT, global_dst_rank=0)


def load_checkpoint(graph: nn.Graph, folder: Path | None) -> int:
    """Fills a graph that has not run yet; returns how many units of work were done.

    Rank 0 reads the file. Any layout may go on from any other's checkpoint.
    """
    if folder is None:
        return 0
    state = flow.load(folder / CHECKPOINT, global_src_rank=0)
    graph.load_state_dict(state["graph"])
    return int(state["done"])
