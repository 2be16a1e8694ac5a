"""Runs on the ranks of test_graph_ranks.py: every scene for their number; exits 0 if all is right.

Every scene trains or runs one graph in a layout and compares with the same model run eagerly, and
locally, on the whole batch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.boxing import settings
from oneflow.distributed.world import world
from oneflow.nn.graph import GraphModule
from tests.support.refusing import refuses

from . import graph_layout_scenes

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
EVERYONE = flow.placement("cpu", list(range(SIZE)))
FIRST, LAST = flow.placement("cpu", [0]), flow.placement("cpu", [SIZE - 1])
S0, S1, B, P = flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast, flow.sbp.partial_sum
STEPS, ROWS = 4, 16
RNG = np.random.default_rng(0)
X = RNG.normal(size=(STEPS, ROWS, 6)).astype(np.float32)
Y = RNG.integers(0, 3, (STEPS, ROWS))


def check(got: Any, expected: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), tolerance, tolerance)


def make_model(drop: float = 0.0, norm: bool = True) -> nn.Sequential:
    flow.manual_seed(1)
    # No bias before the norm: its gradient is 0 but for rounding, which Adam would blow up.
    first, middle = nn.Linear(6, 8, bias=not norm), nn.BatchNorm1d(8) if norm else nn.Identity()
    return nn.Sequential(
        first, middle, nn.Tanh(), nn.Dropout(drop), nn.Linear(8, 8), nn.Linear(8, 3)
    )


def make_adam(model: Any) -> tuple[Any, Any]:
    """Two groups, one clipped; warm-up and cosine."""
    first, *rest = model.parameters()
    clip = {"clip_grad_max_norm": 0.1, "clip_grad_norm_type": 2.0}
    optimizer = flow.optim.AdamW(
        [{"params": [first], "lr": 0.05}, {"params": rest, **clip}], lr=0.05
    )
    cosine = flow.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    return optimizer, flow.optim.lr_scheduler.WarmUpLR(cosine, 0.2, 2)


class Train(nn.Graph):
    def __init__(self, model: Any, optimizer: Any, schedule: Any = None, pieces: int = 1) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=schedule)
        self.config.set_gradient_accumulation_steps(pieces)

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


class Predict(nn.Graph):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Any) -> Any:
        return self.model(x)


class Compute(nn.Graph):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def build(self, *args: Any) -> Any:
        return self.function(*args)


_REFERENCE: dict[bool, Any] = {}


def reference(norm: bool) -> Any:
    """Losses and final state of the same training, eager and local."""
    if norm not in _REFERENCE:
        model = make_model(norm=norm)
        optimizer, schedule = make_adam(model)
        losses = []
        for x, y in zip(X, Y, strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(flow.tensor(x)), flow.tensor(y))
            loss.backward()
            optimizer.clip_grad()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        _REFERENCE[norm] = losses, {k: v.numpy() for k, v in model.state_dict().items()}
    return _REFERENCE[norm]


def whole(x: Any) -> Any:
    """The values, on every rank, also on those that hold nothing of x."""
    return x.to_global(placement=EVERYONE, sbp=B).numpy()


def on(array: Any, placement: Any, sbp: Any) -> Any:
    return flow.tensor(array, placement=placement, sbp=sbp)


def feed(i: int, placement: Any = EVERYONE, sbp: Any = S0) -> tuple[Any, Any]:
    return on(X[i], placement, sbp), on(Y[i], placement, sbp)


def compare_with_eager(model: Any, graph: Any, feeds: Any, norm: bool) -> None:
    losses, state = reference(norm)
    check([whole(graph(*feeds(i))).mean() for i in range(STEPS)], losses)
    for name, value in model.state_dict().items():
        check(whole(value), state[name], 2e-4)


# ---- training in layouts -------------------------------------------------------------------------


def data_parallel() -> None:
    for pieces, norm, is_auto in ((1, True, False), (2, False, False), (1, True, True)):
        model = make_model(norm=norm).to_global(EVERYONE, B)
        graph = Train(model, *make_adam(model), pieces)
        graph.config.enable_auto_parallel(is_auto)
        compare_with_eager(model, graph, feed, norm)
    check(graph.state_dict()["System-Train-TrainStep"].item(), STEPS)


def data_parallel_split(stage: int) -> None:
    """ZeRO: tensors that the ranks hold as copies are split over them."""
    model = make_model(norm=False).to_global(EVERYONE, B)
    graph = Train(model, *make_adam(model), pieces=2)
    graph.config.enable_zero(True, stage=stage, shard_min_size=8)
    compare_with_eager(model, graph, feed, False)
    assert model[4].weight.sbp == ((S0,) if stage == 3 else (B,))
    assert graph.state_dict()["model.4.weight-exp_avg"].sbp == (S0,)


def lowered() -> None:
    """All_reduces that are calls of the eager backend: the same bits as actors' own."""
    found = []
    for enabled in (False, True):
        flow.boxing.nccl.enable_all_reduce_in_graphs(enabled)
        model = make_model(norm=False).to_global(EVERYONE, B)
        graph = Train(model, *make_adam(model))
        losses = [whole(graph(*feed(i))) for i in range(STEPS)]
        kinds = {actor.kind.name for actor in graph._spec.plans.now.job.bound.plan.actors}
        assert ("ALL_REDUCE" in kinds) is enabled, kinds
        found.append([*losses, *(whole(p) for p in model.parameters())])
    settings.reset()
    for without, with_calls in zip(*found, strict=True):
        np.testing.assert_array_equal(without, with_calls)


def tensor_parallel() -> None:
    model = make_model().to_global(EVERYONE, B)
    for name, sbp in (("weight", S0), ("bias", S0)):
        parameter = getattr(model[4], name)
        parameter.data = parameter.detach().to_global(sbp=sbp)
    model[5].weight.data = model[5].weight.detach().to_global(sbp=S1)
    graph = Train(model, *make_adam(model))
    compare_with_eager(model, graph, lambda i: feed(i, sbp=B), True)
    assert model[4].weight.sbp == (S0,) and model[5].weight.sbp == (S1,)


IN_TURN, IN_ROUNDS = (0, 0, 0, 0, 1, 1), (0, 0, 1, 1, 2, 3)
"""The stage of each layer: two on one half of the ranks each, or two on either."""


def pipeline(
    is_recomputed: bool, stage: int, schedule: str = "1f1b", dealt: tuple[int, ...] = IN_TURN
) -> None:
    model = make_model(norm=False)
    halves = stages()
    for layer, number in zip(model, dealt, strict=True):
        layer.to_global(halves[number % 2], B)
    graph = Train(model, *make_adam(model), pieces=4)
    graph.config.enable_zero(stage > 0, stage=stage or 1, shard_min_size=8)
    graph.config.set_pipeline_schedule(schedule)
    for layer, number in zip(graph.model, dealt, strict=True):
        layer.to(GraphModule).set_stage(number, halves[number % 2])
        layer.to(GraphModule).activation_checkpointing = is_recomputed
    assert [c.to(GraphModule).stage_id for c in graph.model.children()] == list(dealt)
    compare_with_eager(
        model, graph, lambda i: (on(X[i], halves[0], S0), on(Y[i], halves[1], S0)), False
    )


def stages() -> list[Any]:
    half = SIZE // 2
    return [flow.placement("cpu", list(range(i * half, (i + 1) * half))) for i in range(2)]


def mesh() -> None:
    """Data parallel along one axis, tensor parallel along the other."""
    grid = flow.placement("cpu", [[0, 1], [2, 3]])
    model = make_model().to_global(grid, [B, B])
    model[4].weight.data = model[4].weight.detach().to_global(sbp=[B, S0])
    model[4].bias.data = model[4].bias.detach().to_global(sbp=[B, S0])
    model[5].weight.data = model[5].weight.detach().to_global(sbp=[B, S1])
    graph = Train(model, *make_adam(model))
    compare_with_eager(model, graph, lambda i: feed(i, grid, [S0, B]), True)


# ---- more than training --------------------------------------------------------------------------


def dropout() -> None:
    """The masks of eager calls, in every layout, also where the ranks' generators are apart: that
    of the first rank counts. The ranks agree on them when a graph is compiled, not in its steps."""
    group = world().collectives(tuple(range(SIZE)))
    for pieces in (1, 2, 4):
        layer = nn.Dropout(0.5)
        ones = np.ones((ROWS, 5), np.float32)
        flow.manual_seed(9)
        local = [[layer(flow.tensor(x)) for x in np.split(ones, pieces)] for _ in range(3)]
        wanted = [np.concatenate([x.numpy() for x in parts]) for parts in local]
        assert not np.array_equal(wanted[0], wanted[1])
        for apart in (False, True):
            flow.manual_seed(9 + apart * RANK)
            graph = Predict(layer)
            graph.config.set_gradient_accumulation_steps(pieces)
            x = on(ones, EVERYONE, S0)
            drawn, calls = [graph(x)], group.calls
            drawn += [graph(x) for _ in range(2)]
            assert group.calls == calls
            masks = [mask.numpy() for mask in drawn]
            np.testing.assert_array_equal(masks, wanted)
            after = flow.rand(2).numpy()
            flow.manual_seed(9 + apart * RANK)
            [flow.rand(1) for _ in range(3 * pieces)]
            np.testing.assert_array_equal(after, flow.rand(2).numpy())


def resume(folder: Path) -> None:
    """Goes on from a file, to the last bit; also of another layout's optimizer states."""

    def trainer(sbp: Any) -> Train:
        model = make_model(0.3).to_global(EVERYONE, B)
        model[4].weight.data = model[4].weight.detach().to_global(sbp=sbp)
        return Train(model, *make_adam(model))

    one = trainer(S0)
    losses = [one(*feed(i)).numpy().copy() for i in range(2)]
    flow.save(one.state_dict(), folder / "state", global_dst_rank=0)
    losses += [one(*feed(i)).numpy().copy() for i in (2, 3)]
    flow.comm.barrier()
    other = trainer(S0)
    other.load_state_dict(flow.load(folder / "state", global_src_rank=0))
    assert [other(*feed(i)).numpy() for i in (2, 3)] == losses[2:]
    third = trainer(S1)
    third.load_state_dict(flow.load(folder / "state", global_src_rank=0))
    check([third(*feed(i)).numpy() for i in (2, 3)], losses[2:])


def inference() -> None:
    """Runs on one rank, on all, and from one rank to another; the others hold nothing of the
    result.
    """
    model = make_model()
    model.eval()
    expected = model(flow.tensor(X[0])).numpy()
    for placement in (EVERYONE, FIRST, LAST):
        placed = make_model().to_global(placement, B)
        placed.eval()
        out = Predict(placed)(on(X[0], placement, B))
        assert out.placement == placement and out.shape == (ROWS, 3)
        assert out.to_local().shape == ((ROWS, 3) if RANK in placement.ranks else (0, 0))
        check(whole(out), expected)
    moved = Compute(lambda x: (x * 2.0).to_global(placement=LAST, sbp=B) + 1.0)
    out = moved(on(X[0], FIRST, B))
    assert out.to_local().shape == ((ROWS, 6) if RANK == SIZE - 1 else (0, 0))
    check(whole(out), X[0] * 2 + 1)


def layouts_in_build() -> None:
    """to_global of any kind, with the gradient's layout; a local tensor is refused."""
    weight = nn.Linear(6, 6, bias=False).to_global(EVERYONE, B)
    w = weight.weight.numpy().copy()

    class Boxed(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.linear = weight

        def build(self, x: Any) -> Any:
            h = self.linear(x).to_global(sbp=S1, grad_sbp=S0)
            g = h.to_global(placement=FIRST, sbp=B).to_global(placement=EVERYONE, sbp=S0)
            loss = (g * g).sum()
            loss.backward()
            return h, loss.to_global(sbp=B), self.linear.weight.grad

    h, loss, grad = Boxed()(on(X[0], EVERYONE, S0))
    product = X[0] @ w.T
    assert h.sbp == (S1,) and loss.sbp == (B,)
    check(h.numpy(), product)
    check(loss.numpy(), (product * product).sum(), 1e-4)
    check(grad.numpy(), 2 * product.T @ X[0], 1e-4)
    assert weight.weight.grad is None
    refuses(
        RuntimeError,
        "local_tensor.to_global() is not supported",
        lambda: Compute(lambda x: x.to_global(EVERYONE, B))(flow.ones(2)),
    )
    refuses(
        RuntimeError, "no data yet", lambda: Compute(lambda x: x.to_local())(on(X[0], EVERYONE, S0))
    )
    refuses(
        RuntimeError, "mixed", lambda: Compute(lambda x: x + flow.ones(6))(on(X[0], EVERYONE, S0))
    )


def sources() -> None:
    """New and captured tensors in build; random ones are the same in every layout."""
    captured = on(np.arange(6.0, dtype=np.float32), EVERYONE, B)

    def make(sbp: Any) -> Any:
        def build(x: Any) -> Any:
            where = {"placement": EVERYONE, "sbp": sbp}
            noise, ones = flow.randn(ROWS, 6, **where), flow.ones(ROWS, 6, **where)
            rows = flow.arange(ROWS, **where)
            return noise, x + captured * 2.0 + ones, rows, flow.zeros_like(x)

        return build

    drawn = []
    for sbp in (S0, B):
        flow.manual_seed(4)
        noise, total, rows, zeros = Compute(make(sbp))(on(X[0], EVERYONE, S0))
        drawn.append(noise.numpy().copy())
        check(total.numpy(), X[0] + np.arange(6) * 2 + 1)
        check(rows.numpy(), np.arange(ROWS))
        check(zeros.numpy(), np.zeros((ROWS, 6)))
    assert np.array_equal(drawn[0], drawn[1])


def local_graphs() -> None:
    """Every rank has a graph of its own, with its own data and shapes."""
    out = Compute(lambda x: x * 2 + flow.ones(3))(flow.full((RANK + 1, 3), float(RANK)))
    assert out.is_local
    check(out.numpy(), np.full((RANK + 1, 3), 2.0 * RANK + 1))


def split() -> None:
    """Scenes in which memory is used in turns and parameters are gathered ahead."""
    data_parallel_split(3)
    pipeline(True, 3)


def main() -> None:
    if sys.argv[2:] == ["split"]:
        split()
    else:
        everything()
    print(f"rank {RANK} done", flush=True)


def everything() -> None:
    data_parallel()
    lowered()
    tensor_parallel()
    for stage in (1, 2):
        data_parallel_split(stage)
    pipeline(False, 0)
    split()
    pipeline(False, 2, "zero_bubble")
    pipeline(True, 0, "zero_bubble")
    pipeline(False, 0, dealt=IN_ROUNDS)
    pipeline(True, 0, dealt=IN_ROUNDS)
    if SIZE == 4:
        mesh()
    else:
        inference()
        layouts_in_build()
        sources()
        local_graphs()
        resume(Path(sys.argv[1]))
    graph_layout_scenes.transformer_layer((SIZE,) if SIZE == 2 else (2, 2))
    graph_layout_scenes.moves_alone()
    dropout()


if __name__ == "__main__":
    main()
