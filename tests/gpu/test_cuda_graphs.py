"""Segments recorded as CUDA graphs: the numbers of a step are those of kernels launched one by one,
random ones too, and calls that a graph must not hold are left out of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.actors.cuda_graph import Recordings, Replayed
from oneflow.core.config import current_config, set_config
from oneflow.core.draws import DrawnSeed, Draws, Randomness, draw_id
from oneflow.kernels.draw_seeds import DrawSeeds

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
cupy = need_gpu()
STEPS, ROWS = 5, 8
Array = np.ndarray[Any, Any]


@contextmanager
def recording(on: bool) -> Iterator[None]:
    before = current_config()
    set_config(replace(before, cuda_graphs=on))
    try:
        yield
    finally:
        set_config(before)


class Trained(nn.Graph):
    """A model with everything that changes from step to step."""

    def __init__(self, device: str, pieces: int = 1, scales: bool = False, **dropped: float):
        super().__init__()
        flow.manual_seed(3)
        self.model = nn.Sequential(
            nn.Linear(6, 16), nn.GELU(), nn.Dropout(dropped.get("p", 0.3)), nn.LayerNorm(16),
            nn.Linear(16, 4),
        ).to(device)  # fmt: skip
        self.criterion = nn.CrossEntropyLoss()
        optimizer = flow.optim.AdamW(
            [{"params": self.model.parameters(), "clip_grad_max_norm": 1.0}], lr=1e-2
        )
        self.add_optimizer(optimizer, lr_sch=flow.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
        if scales:
            self.set_grad_scaler(flow.amp.GradScaler(init_scale=2.0**20, growth_interval=2))
        self.config.set_gradient_accumulation_steps(pieces)

    def build(self, x: Any, y: Any) -> Any:
        loss = self.criterion(self.model(x), y)
        loss.backward()
        return loss


def batches() -> Iterator[tuple[Array, Array]]:
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        yield rng.normal(size=(ROWS, 6)).astype(np.float32), rng.integers(0, 4, ROWS)


def trained(device: str, on: bool, **settings: Any) -> tuple[list[Array], Recordings | None]:
    """Losses and last weights, and the recorded calls."""
    with recording(on):
        graph = Trained(device, **settings)
        flow.manual_seed(5)
        found = []
        for x, y in batches():
            found.append(graph(flow.tensor(x, device=device), flow.tensor(y, device=device)))
        weights = [p.numpy() for p in graph.model.parameters()]
        compiled = graph._spec.plans.now
        assert compiled is not None
        return [*(loss.numpy() for loss in found), *weights], compiled.job.bound.recordings


@pytest.mark.parametrize(
    "settings",
    [{"p": 0.0}, {"p": 0.3}, {"pieces": 2}, {"scales": True}, {"pieces": 4, "scales": True}],
    ids=lambda s: "-".join(f"{k}{v}" for k, v in s.items()),
)
def test_replayed_steps_are_those_of_single_launches(settings: dict[str, Any]) -> None:
    replayed, recordings = trained("cuda", True, **settings)
    launched, none = trained("cuda", False, **settings)
    for a, b in zip(replayed, launched, strict=True):
        np.testing.assert_array_equal(a, b)
    on_cpu, _ = trained("cpu", True, **settings)
    for a, b in zip(replayed, on_cpu, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4)
    assert none is None and recordings is not None
    assert recordings.num_graphs and not recordings.plain


def test_seeds_made_on_the_gpu_are_those_of_the_host() -> None:
    class Clock:
        num_pieces = 3
        randomness = Randomness(
            (Draws(11, 5, 4, 2), Draws(2**64 - 3, 2**40, 1)), {2: (Draws(7, 1, 4, 2),)}
        )

    wanted = [
        DrawnSeed(draw_id(g, n, once=once), rank, piece)
        for g, n, once in ((0, 1, False), (0, 4, False), (0, 2, True), (1, 1, False))
        for rank in ((0, 2) if g == 0 else (0,))
        for piece in (-1, 0, 2)
    ]
    seeds, clock = DrawSeeds(wanted, Clock()), Clock()
    for piece in range(clock.num_pieces):
        seeds.make(piece)
        for seed, array in zip(wanted, seeds.arrays, strict=True):
            source = piece if seed.piece < 0 else seed.piece
            expected = clock.randomness.seed(seed.draw, source, clock.num_pieces, seed.rank)
            assert int(array[0]) == expected


class Noisy(nn.Graph):
    """Dropout, recorded, around numbers that the host makes."""

    def build(self, x: Any) -> Any:
        kept = flow.nn.functional.dropout(x * 2 + 1, 0.5)
        noise = flow.rand(4, 5, device="cuda")
        return (kept + noise) * 3, noise


def test_numbers_of_the_host_are_made_anew_in_every_step(capsys: Any) -> None:
    x = flow.tensor(np.ones((4, 5), np.float32), device="cuda")
    found = []
    for on in (True, False):
        with recording(on):
            flow.manual_seed(9)
            graph = Noisy()
            graph.debug(2)
            found.append([[y.numpy() for y in graph(x)] for _ in range(4)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len({float(y.sum()) for _, y in found[0]}) == 4
    said = capsys.readouterr().out
    assert "its random numbers are made on the host" in said and "test_cuda_graphs.py" in said


def test_a_seed_set_between_steps_holds_for_recorded_draws() -> None:
    class Dropped(nn.Graph):
        def build(self, x: Any) -> Any:
            return flow.nn.functional.dropout(x + 1, 0.5) * 2

    x, graph = flow.tensor(np.ones((16, 16), np.float32), device="cuda"), Dropped()
    found = []
    for _ in range(3):
        flow.manual_seed(21)
        found.append([graph(x).numpy() for _ in range(2)])
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    assert not np.array_equal(*found[0])


def test_a_copy_from_the_host_is_never_recorded() -> None:
    host, out = np.zeros(8), cupy.zeros(8)
    recordings = Recordings()
    twice = cupy.zeros(8)
    calls = [
        lambda: cupy.add(out, 1, out=twice),
        lambda: out.set(host),
        lambda: cupy.add(out, out, out=twice),
        lambda: cupy.add(twice, 1, out=twice),
    ]
    act = Replayed("copies", calls, recordings)
    for step in range(5):
        host[:] = step
        act()
        np.testing.assert_array_equal(twice.get(), np.full(8, 2.0 * step + 1))
    assert (recordings.num_graphs, recordings.num_calls, recordings.plain) == (2, 3, 1)
    assert "H2D" in recordings.take_lines()[0]


def test_a_call_that_waits_runs_between_graphs() -> None:
    x, seen = cupy.zeros(4), []
    calls = [
        lambda: cupy.add(x, 1, out=x),
        lambda: cupy.add(x, 1, out=x),
        lambda: seen.append(float(x[0].get())),
        lambda: cupy.multiply(x, 2, out=x),
        lambda: cupy.multiply(x, 2, out=x),
    ]
    recordings = Recordings()
    act, expected, value = Replayed("waits", calls, recordings), [], 0.0
    for _ in range(4):
        act()
        expected.append(value + 2)
        value = (value + 2) * 4
        np.testing.assert_array_equal(x.get(), np.full(4, value))
    assert seen == expected and recordings.num_graphs == 2
