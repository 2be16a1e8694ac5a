"""Options of graphs, layouts on one to eight ranks, and eager training to compare graphs with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.amp import GradScaler, StaticGradScaler
from oneflow.core.job_config import ORDER_MODES
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST as B
from oneflow.core.sbp import NdSbp, Split
from oneflow.nn.graph import GraphModule
from oneflow.optim import SGD, Adam, AdamW
from oneflow.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR, WarmUpLR

from .ranks import Ranks, put

S0, S1 = Split(0), Split(1)
STEPS = 5
BAD = 2
"""The step whose batch has an infinite number, in tests that want one."""

SHAPES = ((12, 6), (12, 12), (4, 12))

# ---- layouts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """stages: hierarchies of ranks, one after another; the first layer runs on the first of them,
    the others on the last.  batch: layout of the input.  weights: those of each layer's weight.
    """

    stages: tuple[tuple[int, ...], ...]
    batch: NdSbp
    weights: tuple[NdSbp, ...]

    @property
    def places(self) -> list[Placement]:
        """The placements of the stages."""
        made: list[Placement] = []
        start = 0
        for hierarchy in self.stages:
            stop = start + int(np.prod(hierarchy))
            made.append(Placement("cpu", np.arange(start, stop).reshape(hierarchy)))
            start = stop
        return made

    @property
    def size(self) -> int:
        return sum(place.size for place in self.places)

    def stage_of(self, layer: int) -> int:
        return min(layer, len(self.stages) - 1)

    def put(self, layer: int, array: Any) -> Any:
        """A weight or bias of a layer, on its ranks."""
        nd_sbp = tuple(s if s != S1 or array.ndim > 1 else B for s in self.weights[layer])
        return put(array, self.places[self.stage_of(layer)], nd_sbp)


COPIES, CUT = ((B,),) * 3, ((S0,), (S1,), (S0,))
COPIES_CUT = ((B, S0), (B, S1), (B, S0))
LAYOUTS: dict[str, Layout] = {
    "one rank": Layout(((1,),), (B,), COPIES),
    "dp 2": Layout(((2,),), (S0,), COPIES),
    "tp 2": Layout(((2,),), (B,), CUT),
    "pp 2": Layout(((1,), (1,)), (B,), COPIES),
    "dp 2, tp 2": Layout(((2, 2),), (S0, B), COPIES_CUT),
    "dp 2, pp 2": Layout(((2,), (2,)), (S0,), COPIES),
    "tp 2, pp 2": Layout(((2,), (2,)), (B,), CUT),
    "dp 2, tp 2, pp 2": Layout(((2, 2), (2, 2)), (S0, B), COPIES_CUT),
}
"""Data, tensor and pipeline parallel, alone and together."""

# ---- options -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """An option, and the eager training that it stands for.

    configure: sets it on a graph.  is_rough: compare with float64, for the option is about
    precision.  scaler: makes a gradient scaler.  pieces: micro-batches.  bad: the step whose batch
    has an infinite number.  drop: the share of hidden numbers that are dropped.
    """

    configure: Callable[[nn.Graph], None] = lambda graph: None
    is_rough: bool = False
    scaler: Callable[[], GradScaler] | None = None
    pieces: int = 1
    bad: int = -1
    tolerance: float = 1e-5
    drop: float = 0.0


def amp(dtype: Any) -> Callable[[nn.Graph], None]:
    return lambda graph: graph.config.enable_amp(True, dtype=dtype)


def zero(stage: int, level: int = 1) -> Callable[[nn.Graph], None]:
    """Splits two weights of three, and no bias."""
    return lambda graph: graph.config.enable_zero(
        True, stage=stage, shard_min_size=60, shard_restore_level=level
    )


def both(*settings: Callable[[Any], None]) -> Callable[[nn.Graph], None]:
    def configure(graph: nn.Graph) -> None:
        for setting in settings:
            setting(graph)

    return configure


def again(*path: int | str) -> Callable[[Any], None]:
    """Recomputes modules of the model."""

    def configure(graph: Any) -> None:
        for name in path:
            module = graph.model
            for part in str(name).split(".") if name != "" else ():
                module = module[int(part)] if part.isdigit() else getattr(module, part)
            module.to(GraphModule).activation_checkpointing = True

    return configure


def setting(name: str, *values: object, **named: object) -> Callable[[Any], None]:
    """Calls a method of `graph.config`."""
    return lambda graph: getattr(graph.config, name)(*values, **named)


def auto(*settings: Callable[[Any], None]) -> Callable[[Any], None]:
    """Lets layouts be searched, with these settings."""
    return both(setting("enable_auto_parallel"), *settings)


def divided(stages: int, grid: tuple[int, ...] = ()) -> Callable[[nn.Graph], None]:
    """Divides the ranks of one placement among stages, or into a grid, where there are as many, as
    auto-parallel of level "full" does with its choice.
    """

    def configure(graph: Any) -> None:
        first = next(graph.model.parameters())
        graph.config.enable_auto_parallel()
        if first.is_global and first.placement.size % (stages * math.prod(grid)) == 0:
            graph.config.stages, graph.config.grid = stages, grid

    return configure


def dynamic() -> GradScaler:
    return GradScaler(init_scale=1024.0, growth_interval=2)


BFLOAT16: dict[str, Any] = {"is_rough": True, "tolerance": 3e-2}
FLOAT16: dict[str, Any] = {"is_rough": True, "tolerance": 4e-3}
CASTS_IN_UPDATES = setting("enable_fused_model_update_cast")
OPTIONS: dict[str, Option] = {
    "none": Option(),
    "none, pieces": Option(pieces=2),
    "dropout": Option(drop=0.4),
    "dropout, pieces": Option(pieces=2, drop=0.4),
    **{mode: Option(setting("enable_straighten_algorithm", mode)) for mode in ORDER_MODES},
    "updates at once": Option(setting("enable_multi_tensor_update")),
    "updates at once, zero 2, inf": Option(
        both(setting("enable_multi_tensor_update"), zero(2)), scaler=dynamic, pieces=2, bad=BAD
    ),
    "additions apart": Option(setting("allow_fuse_add_to_output", False)),
    "casts apart, amp": Option(
        both(setting("allow_fuse_cast_scale", False), amp(flow.bfloat16)), **BFLOAT16
    ),
    "offsets at once": Option(setting("enable_choose_best_memory_allocation", False)),
    "compress memory": Option(setting("enable_compress_memory"), pieces=2),
    "zero bubble, pieces": Option(setting("set_pipeline_schedule", "zero_bubble"), pieces=4),
    "no overlap": Option(setting("enable_overlap", False)),
    "small buckets, pieces": Option(setting("enable_overlap", bucket_nbytes=64), pieces=2),
    "memory limit": Option(setting("set_memory_limit", 1 << 16), pieces=2),
    "auto parallel": Option(auto()),
    "auto parallel, pieces": Option(auto(), pieces=2),
    "auto parallel, any sbp": Option(auto(setting("enable_auto_parallel_ignore_user_sbp_config"))),
    "auto parallel, weighed": Option(
        auto(
            setting("set_auto_parallel_computation_cost_ratio", 0.5),
            setting("set_auto_parallel_wait_time", 1e3),
            setting("enable_auto_parallel_trunk_algo", False),
            setting("enable_auto_parallel_sbp_collector", False),
        )
    ),
    "auto parallel, little memory": Option(auto(setting("enable_auto_memory", "HeavyMemoryDown"))),
    "auto parallel, memory limit": Option(
        auto(setting("enable_auto_memory"), setting("set_memory_limit", 1 << 16))
    ),
    "auto parallel, zero 1, pieces": Option(auto(zero(1)), pieces=2),
    "auto parallel, zero 2, pieces": Option(auto(zero(2)), pieces=2),
    "auto parallel, zero 3": Option(auto(zero(3))),
    "auto parallel, stages": Option(divided(2), pieces=2),
    "auto parallel, stages, again, scaler, inf": Option(
        both(divided(2), again(0, 1)), scaler=dynamic, pieces=4, bad=BAD
    ),
    "auto parallel, a grid of ranks": Option(divided(1, (2, 2)), pieces=2),
    "amp bfloat16": Option(amp(flow.bfloat16), **BFLOAT16),
    "amp, casts in updates": Option(both(amp(flow.bfloat16), CASTS_IN_UPDATES), **BFLOAT16),
    "amp, casts in updates, zero 2": Option(
        both(amp(flow.bfloat16), CASTS_IN_UPDATES, zero(2)), **BFLOAT16, pieces=2
    ),
    "amp, casts in updates, zero 3": Option(
        both(amp(flow.bfloat16), CASTS_IN_UPDATES, zero(3)), **BFLOAT16, pieces=2
    ),
    "amp float16, casts in updates, scaler, inf": Option(
        both(amp(flow.float16), CASTS_IN_UPDATES), **FLOAT16, scaler=dynamic, bad=BAD
    ),
    "amp float16, pieces": Option(amp(flow.float16), **FLOAT16, pieces=2),
    "static scaler": Option(scaler=lambda: StaticGradScaler(64.0)),
    "scaler": Option(scaler=dynamic),
    "scaler, inf": Option(scaler=dynamic, bad=BAD),
    "scaler, inf, pieces": Option(scaler=dynamic, bad=BAD, pieces=2),
    "static scaler, inf": Option(scaler=lambda: StaticGradScaler(64.0), bad=BAD),
    "amp float16, scaler, inf": Option(
        amp(flow.float16), **FLOAT16, scaler=dynamic, pieces=2, bad=BAD
    ),
    "zero 1": Option(zero(1)),
    "zero 2": Option(zero(2)),
    "zero 3": Option(zero(3)),
    "zero 1, pieces": Option(zero(1), pieces=2),
    "zero 2, pieces": Option(zero(2), pieces=2),
    "zero 3, pieces": Option(zero(3), pieces=2),
    "zero 3, level 0": Option(zero(3, 0)),
    "zero 3, level 2": Option(zero(3, 2)),
    "zero by its old name": Option(setting("set_zero_redundancy_optimizer_mode")),
    "zero 2, scaler, inf": Option(zero(2), scaler=dynamic, bad=BAD),
    "zero 3, scaler, inf, pieces": Option(zero(3), scaler=dynamic, bad=BAD, pieces=2),
    "zero 3, amp": Option(both(zero(3), amp(flow.bfloat16)), **BFLOAT16),
    "zero 3, again": Option(both(zero(3), again(0, 1)), pieces=2),
    "again": Option(again(0, 1)),
    "again, dropout, pieces": Option(again(0, 1, 2), pieces=2, drop=0.4),
    "again, nested, pieces": Option(again("", 1, "1.act"), pieces=2),
    "again, nested, in stages": Option(again(0, 1, "1.act", "1.drop"), pieces=4, drop=0.4),
    "amp, casts in updates, zero 3, again, scaler, inf, pieces": Option(
        both(amp(flow.bfloat16), CASTS_IN_UPDATES, zero(3), again(0, 1)),
        **BFLOAT16,
        scaler=dynamic,
        pieces=2,
        bad=BAD,
    ),
    "again, amp float16, scaler": Option(
        both(amp(flow.float16), again(0, 1, 2)), **FLOAT16, scaler=dynamic
    ),
}

AXES: dict[str, dict[str, Option]] = {
    "precision": {
        "bfloat16": Option(amp(flow.bfloat16), **BFLOAT16),
        "bfloat16, casts in updates": Option(
            both(amp(flow.bfloat16), CASTS_IN_UPDATES), **BFLOAT16
        ),
        "float16": Option(amp(flow.float16), **FLOAT16),
    },
    "zero": {f"zero {i}": Option(zero(i)) for i in (1, 2, 3)},
    "again": {
        "again": Option(again(0, 1)),
        "all again": Option(again(0, 1, 2)),
        "nested again": Option(again("", 1, "1.act")),
    },
    "pieces": {f"{n} pieces": Option(pieces=n) for n in (2, 4)},
    "scaler": {
        "scaler": Option(scaler=dynamic),
        "scaler, inf": Option(scaler=dynamic, bad=BAD),
        "static scaler": Option(scaler=lambda: StaticGradScaler(64.0)),
    },
    "order": {mode: Option(setting("enable_straighten_algorithm", mode)) for mode in ORDER_MODES},
    "schedule": {"zero bubble": Option(setting("set_pipeline_schedule", "zero_bubble"))},
    "buckets": {
        "no overlap": Option(setting("enable_overlap", False)),
        "small buckets": Option(setting("enable_overlap", bucket_nbytes=64)),
    },
    "updates": {"updates at once": Option(setting("enable_multi_tensor_update"))},
    "search": {"auto parallel": Option(auto())},
}
"""Options that may be drawn together: one of each of some axes."""


def drawn(rng: np.random.Generator, count: int = 3) -> Option:
    """Some options of as many axes, at once."""
    axes = rng.permutation(list(AXES))[:count]
    chosen = [list(AXES[axis].values())[rng.integers(len(AXES[axis]))] for axis in axes]
    return Option(
        both(*(option.configure for option in chosen)),
        is_rough=any(option.is_rough for option in chosen),
        scaler=next((option.scaler for option in chosen if option.scaler), None),
        pieces=max(option.pieces for option in chosen),
        bad=max(option.bad for option in chosen),
        tolerance=max(option.tolerance for option in chosen),
    )


# ---- optimizers ----------------------------------------------------------------------------------

Trainers = Sequence[tuple[Any, Any]]
"""Optimizers, each with its schedule or None."""


def momentum_clipped(parameters: Any) -> Trainers:
    group = {"params": list(parameters), "clip_grad_max_norm": 0.2, "clip_grad_norm_type": 2.0}
    return [(SGD([group], lr=0.1, momentum=0.9), None)]


def adam(parameters: Any) -> Trainers:
    return [(Adam(parameters, lr=0.01), None)]


def groups(norm: float) -> Callable[[Any], Trainers]:
    """Two groups with learning rates of their own, each clipped by itself."""

    def make(parameters: Any) -> Trainers:
        first, second, *rest = parameters
        groups = [
            {"params": [first, second], "clip_grad_max_norm": 0.05, "clip_grad_norm_type": norm},
            {"params": rest, "lr": 0.05, "lr_scale": 0.5, "clip_grad_max_norm": 0.01},
        ]
        return [(SGD(groups, lr=0.1, momentum=0.5), None)]

    return make


def two_with_schedules(parameters: Any) -> Trainers:
    """Two optimizers, each with a schedule, and a group whose rate is a part of it."""
    first, second, *rest = parameters
    adam = AdamW([{"params": [first], "lr_scale": 0.3}, {"params": [second]}], lr=0.02)
    sgd = SGD(rest, lr=0.1, momentum=0.9)
    warm = WarmUpLR(CosineAnnealingLR(adam, T_max=STEPS), 0.2, 2)
    return [(adam, warm), (sgd, StepLR(sgd, 2, gamma=0.5))]


def one_cycle(parameters: Any) -> Trainers:
    """The momentum goes down and up while the rate goes up and down."""
    first, *rest = parameters
    adam, sgd = Adam([first], lr=0.01), SGD(rest, lr=0.05, momentum=0.9)
    return [(o, OneCycleLR(o, 0.1, total_steps=STEPS + 1)) for o in (adam, sgd)]


OPTIMIZERS: dict[str, Callable[[Any], Trainers]] = {
    "momentum, clipped": momentum_clipped,
    "adam": adam,
    "two with schedules": two_with_schedules,
    "one cycle": one_cycle,
    **{f"groups, norm {n}": groups(n) for n in (0.5, 1.0, 2.0, 3.0, np.inf, -np.inf)},
}

# ---- the model and its training ------------------------------------------------------------------


class Layer(nn.Module):
    """tanh of a linear function, whose weights are put where `put` says."""

    def __init__(
        self, put: Callable[[Any], Any], rows: int, columns: int, drop: float = 0.0
    ) -> None:
        super().__init__()
        data = np.random.default_rng(rows + columns)
        for name, shape in (("weight", (rows, columns)), ("bias", (rows,))):
            array = (0.4 * data.standard_normal(shape)).astype(np.float32)
            setattr(self, name, nn.Parameter(put(array)))
        self.act, self.drop = nn.Tanh(), nn.Dropout(drop)

    def forward(self, x: Any) -> Any:
        return self.drop(self.act(F.linear(x, self.weight, self.bias)))


class Model(nn.Sequential):
    """Three layers. put: of a layer's number and an array makes the tensor."""

    def __init__(self, put: Callable[[int, Any], Any], drop: float = 0.0) -> None:
        super().__init__(
            *(
                Layer(lambda a, i=i: put(i, a), rows, columns, drop)  # type: ignore[misc]
                for i, (rows, columns) in enumerate(SHAPES)
            )
        )


def local(_: int, array: Any) -> Any:
    return flow.tensor(array)


def double(_: int, array: Any) -> Any:
    return flow.tensor(array.astype(np.float64))


def loss_of(model: Any, x: Any) -> Any:
    out, target = model(x), x[:, :4]
    if out.is_global and out.placement != x.placement:
        target = target.to_global(placement=out.placement)
    return ((out - target) ** 2).mean()


class Train(nn.Graph):
    def __init__(self, model: Any, trainers: Trainers, option: Option) -> None:
        super().__init__()
        self.model = model
        for optimizer, schedule in trainers:
            self.add_optimizer(optimizer, lr_sch=schedule)
        self.config.set_gradient_accumulation_steps(option.pieces)
        self.scaler = None if option.scaler is None else option.scaler()
        if self.scaler is not None:
            self.set_grad_scaler(self.scaler)
        option.configure(self)

    def build(self, x: Any) -> Any:
        loss = loss_of(self.model, x)
        loss.backward()
        return loss


class Eager:
    """The steps that the graph is to do, spelled out."""

    def __init__(self, model: Any, trainers: Trainers, option: Option) -> None:
        self.model, self.trainers, self.option = model, trainers, option
        self.scaler = None if option.scaler is None else option.scaler()

    def __call__(self, x: Any) -> float:
        for optimizer, _ in self.trainers:
            optimizer.zero_grad()
        loss = float(np.mean([self.backward(piece) for piece in np.split(x, self.option.pieces)]))
        scaler = self.scaler
        for optimizer, _ in self.trainers:
            if scaler is not None:
                scaler.unscale_(optimizer)
            optimizer.clip_grad()
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        for _, schedule in self.trainers:
            if schedule is not None:
                schedule.step()
        return loss

    def backward(self, piece: Any) -> float:
        loss = loss_of(self.model, flow.tensor(piece))
        part = loss / self.option.pieces
        (part if self.scaler is None else self.scaler.scale(part)).backward()
        return float(loss.item())


def batches(rng: np.random.Generator, bad: int) -> list[Any]:
    made = [rng.standard_normal((8, 6)).astype(np.float32) for _ in range(STEPS)]
    if bad >= 0:
        made[bad][3, 5] = np.inf
    return made


def spread(option: Option, layout: Layout, trainers: Callable[[Any], Trainers], x: Any) -> Ranks:
    """The training graph on the ranks of a layout."""

    def make() -> tuple[nn.Graph, Any]:
        model = Model(layout.put, option.drop)
        graph: Any = Train(model, trainers(model.parameters()), option)
        places = layout.places
        for i in range(len(SHAPES) if len(places) > 1 else 0):
            stage = layout.stage_of(i)
            graph.model[i].to(GraphModule).set_stage(stage, places[stage])
        return graph, put(x, places[0], layout.batch)

    return Ranks(make, layout.size)


def trains_as_eager_code(
    option: Option, place: str, trainers: Callable[[Any], Trainers], rng: np.random.Generator
) -> None:
    expected = Model(double if option.is_rough else local, option.drop)
    eager = Eager(expected, trainers(expected.parameters()), option)
    data = batches(rng, option.bad)
    graph = spread(option, LAYOUTS[place], trainers, data[0])
    for seed, x in enumerate(data):
        if option.drop:
            graph.draw(seed, 0)
            flow.manual_seed(seed)
        (losses,) = graph(x)
        found = float(np.mean(losses))
        wanted = eager(x.astype(np.float64) if option.is_rough else x)
        np.testing.assert_allclose(found, wanted, rtol=option.tolerance, atol=option.tolerance)
        if eager.scaler is not None:
            assert graph.variable("System-GradScaler-scale") == eager.scaler.get_scale()
    for key, p in expected.named_parameters():
        np.testing.assert_allclose(
            graph.variable(f"model.{key}"), p.numpy(), rtol=1e-4, atol=option.tolerance
        )
