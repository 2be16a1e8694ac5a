"""Runs on the ranks of test_auto_parallel_ranks.py: exits 0 if all is right.

A graph that lays out its own variables trains as the same model in other layouts, moves the bytes
that the search has predicted, and shares its variables with graphs that come later.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.core.metrics import METRICS

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
EVERYONE = flow.placement("cpu", list(range(SIZE)))
S0, B = flow.sbp.split(0), flow.sbp.broadcast
STEPS, ROWS, WIDTH = 3, 64, 128
RNG = np.random.default_rng(0)
X = RNG.normal(size=(STEPS, ROWS, WIDTH)).astype(np.float32)
Y = RNG.integers(0, 16, (STEPS, ROWS))


def make_model() -> nn.Sequential:
    flow.manual_seed(1)
    layers = nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, WIDTH), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(WIDTH, 16, bias=False))


class Train(nn.Graph):
    def __init__(self, model: Any, is_auto: bool, pieces: int = 1) -> None:
        super().__init__()
        self.model = model
        self.config.set_gradient_accumulation_steps(pieces)
        if pieces > 1:
            self.config.enable_auto_memory("HeavyMemoryDown")
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        self.config.enable_auto_parallel(is_auto)

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


class Predict(nn.Graph):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config.enable_auto_parallel()

    def build(self, x: Any) -> Any:
        return self.model(x)


def fed(array: Any, sbp: Any) -> Any:
    return flow.tensor(array, placement=EVERYONE, sbp=B).to_global(sbp=sbp)


def trained(sbp: Any, is_auto: bool, pieces: int = 1) -> tuple[list[float], dict[str, Any], Train]:
    """Losses and the state at the end, as arrays. The loss lies as without a search."""
    model = make_model().to_global(EVERYONE, B)
    graph = Train(model, is_auto, pieces)
    batches = [(fed(x, sbp), fed(y, sbp)) for x, y in zip(X, Y, strict=True)]
    outputs = [graph(*batch) for batch in batches]
    expected = flow.sbp.partial_sum if sbp == S0 else B  # the mean of rows that lie apart
    assert all(loss.sbp == (expected,) for loss in outputs), outputs[0].sbp
    losses = [float(loss.numpy().mean()) for loss in outputs]
    return losses, {k: v.numpy().copy() for k, v in model.state_dict().items()}, graph


def counted_nbytes() -> int:
    """Bytes that boxing has moved so far, on all ranks."""
    own = sum(METRICS.collective_bytes.values())
    return int(flow.tensor([own]).to_global(EVERYONE, S0).sum().numpy())


def moves_what_was_predicted(graph: Train, sbp: Any) -> None:
    x, y = fed(X[0], sbp), fed(Y[0], sbp)
    graph(x, y)
    before = counted_nbytes()
    of_counting = counted_nbytes() - before
    before = counted_nbytes()
    graph(x, y)
    moved = counted_nbytes() - before - of_counting
    assert moved == graph.explain().chosen.moved_nbytes > 0, (moved, str(graph.explain()))


def main() -> None:
    losses, state, plain = trained(S0, False)
    moves_what_was_predicted(plain, S0)
    for sbp, pieces in ((S0, 1), (B, 1), (S0, 2)):
        found, laid_out, graph = trained(sbp, True, pieces)
        np.testing.assert_allclose(found, losses, 1e-5)
        for name, value in laid_out.items():
            np.testing.assert_allclose(value, state[name], 1e-4, 1e-5)
        moves_what_was_predicted(graph, sbp)
        layouts = {name: x.sbp for name, x in graph.model.named_parameters()}
        assert any(s != (B,) for s in layouts.values()), layouts
        if pieces > 1:
            continue
        explains_itself(graph, plain)
        shares_its_variables(graph, sbp, layouts)
    print(f"rank {RANK} done", flush=True)


def explains_itself(graph: Train, plain: Train) -> None:
    """The chosen layout takes the least time; the others follow, and each differs."""
    told = graph.explain()
    times = [told.chosen.seconds, *(other.seconds for other in told.others)]
    assert times == sorted(times) and len(times) == 4, times
    assert told.chosen.name == "searched" and told.chosen.is_exact
    names = dict(graph.model.named_parameters())
    assert {told.chosen.variables[f"model.{n}"] for n in names} == {x.sbp for x in names.values()}
    followed = plain.explain().chosen
    assert followed.name == "followed" and set(followed.variables.values()) == {(B,)}
    assert "ms a step" in str(told) and str(told).count("bytes moved") == 4


def shares_its_variables(graph: Train, sbp: Any, layouts: dict[str, Any]) -> None:
    """A later graph takes the variables as they lie, and sees the writes of the first one."""
    model = graph.model.to(nn.Module)
    predict = Predict(model)
    for _ in range(2):
        graph(fed(X[1], sbp), fed(Y[1], sbp))
        out, eager = predict(fed(X[0], S0)), model(fed(X[0], S0))
        assert out.sbp == eager.sbp, (out.sbp, eager.sbp)
        np.testing.assert_allclose(out.numpy(), eager.numpy(), 1e-4, 1e-5)
        assert {name: x.sbp for name, x in model.named_parameters()} == layouts


if __name__ == "__main__":
    main()
