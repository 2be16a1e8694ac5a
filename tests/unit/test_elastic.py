"""`flow.elastic`: every row once for any number of ranks, and a state that goes on."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import oneflow as flow
from oneflow import elastic, nn
from oneflow.core.config import Config
from oneflow.core.errors import ArgumentError, CheckpointError


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A State changes how the process ends, which is pytest's here."""
    monkeypatch.setattr(atexit, "register", lambda end: end)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def samplers(
    size: int, monkeypatch: pytest.MonkeyPatch, num_rows: int, batch: int, drop_last: bool = False
) -> list[elastic.Sampler]:
    """The samplers of all ranks of a world."""
    found = []
    for rank in range(size):
        config = replace(Config(), rank=rank, world_size=size)
        monkeypatch.setattr(elastic, "current_config", lambda config=config: config)
        found.append(elastic.Sampler(num_rows, batch, seed=3, drop_last=drop_last))
    return found


@pytest.mark.parametrize("sizes", [(1,), (4, 3, 4), (2, 5, 1, 3)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_row_comes_once_an_epoch_in_the_same_batches_whatever_the_sizes(
    sizes: tuple[int, ...], drop_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_rows, batch = 103, 10
    alone = [rows for rows in samplers(1, monkeypatch, num_rows, batch, drop_last)[0]]
    seen: list[list[int]] = []
    cursor = {"epoch": 0, "position": 0}
    while cursor["epoch"] == 0:
        world = samplers(
            sizes[len(seen) // 2 % len(sizes)], monkeypatch, num_rows, batch, drop_last
        )
        for sampler in world:
            sampler.load_state_dict(cursor)
        parts = [(sampler, next(iter(sampler))) for sampler in world]
        seen.append([row for sampler, rows in parts for row in rows if sampler.weight])
        for sampler in world:
            sampler.advance()
        cursor = world[0].state_dict()
        assert all(sampler.state_dict() == cursor for sampler in world)
    assert seen == alone
    rows = sorted(row for one in seen for row in one)
    assert len(set(rows)) == len(rows) == (100 if drop_last else 103)
    assert cursor == {"epoch": 1, "position": 0}


def test_weights_make_the_average_over_ranks_that_over_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(0).normal(size=23)
    world = samplers(4, monkeypatch, 23, 10)
    means = []
    for _ in range(3):
        parts = [(sampler, next(iter(sampler))) for sampler in world]
        assert all(rows for _, rows in parts), "a rank has a row even if it counts for nothing"
        means.append(np.mean([sampler.weight * values[rows].mean() for sampler, rows in parts]))
        for sampler in world:
            sampler.advance()
    alone = samplers(1, monkeypatch, 23, 10)[0]
    np.testing.assert_allclose(means, [values[rows].mean() for rows in alone], rtol=1e-12)


def test_a_sampler_fetched_ahead_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    (sampler,) = samplers(1, monkeypatch, 30, 10)
    ahead = list(sampler)
    assert len(sampler) == len(ahead) == 3 and sampler.position == 0
    sampler.advance()
    assert list(sampler) == ahead[1:] and len(sampler) == 2
    for _ in range(2):
        sampler.advance()
    assert sampler.epoch == 1 and list(sampler) != ahead


def make_state(folder: Path, save_every: int = 0) -> tuple[elastic.State, nn.Linear]:
    flow.manual_seed(7)
    model = nn.Linear(3, 2)
    optimizer = flow.optim.Adam(model.parameters(), lr=0.1)
    sampler = elastic.Sampler(12, 4, seed=1)
    parts = {"model": model, "optimizer": optimizer, "sampler": sampler}
    return elastic.State(folder, save_every=save_every, **parts), model


def train(state: elastic.State, model: nn.Linear, steps: int) -> list[float]:
    x = flow.arange(36, dtype=flow.float32).reshape(12, 3) / 36
    optimizer, sampler = state._parts["optimizer"], state._parts["sampler"]
    assert isinstance(optimizer, flow.optim.Adam) and isinstance(sampler, elastic.Sampler)
    losses = []
    for _ in range(steps):
        loss = model(x[next(iter(sampler))]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state.commit()
        losses.append(loss.item())
    return losses


def test_a_run_that_ends_goes_on_to_the_bit_from_its_last_commit(tmp_path: Path) -> None:
    whole = train(*make_state(tmp_path / "whole"), steps=9)
    first, model = make_state(tmp_path / "parts")
    assert first.resume() == 0
    losses = train(first, model, 4)
    model.weight.data.fill_(99.0)  # the step that the end of the process breaks off
    first._end()
    again, model = make_state(tmp_path / "parts")
    assert again.resume() == again.step == 4
    assert losses + train(again, model, 5) == whole
    assert sorted(os.listdir(tmp_path / "parts")) == ["step-4"]


def test_states_are_written_every_so_many_steps_and_the_newest_stay(tmp_path: Path) -> None:
    state, model = make_state(tmp_path, save_every=2)
    train(state, model, 7)
    assert sorted(os.listdir(tmp_path)) == ["step-4", "step-6"]
    state._end()
    assert sorted(os.listdir(tmp_path)) == ["step-6", "step-7"]


def test_sigterm_ends_the_process_with_its_code(tmp_path: Path) -> None:
    make_state(tmp_path)
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143


def test_states_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    flow.save({"a": 1}, tmp_path / "sub" / "step-3")
    state, model = make_state(tmp_path / "sub")
    with pytest.raises(CheckpointError, match=r"step-3 is not the state of model, optimizer"):
        state.resume()
    train(*make_state(tmp_path / "other", save_every=1), steps=1)
    other = elastic.State(tmp_path / "other", net=model)
    with pytest.raises(CheckpointError, match=r"that of model, optimizer, sampler; choose another"):
        other.resume()


def test_mistakes_are_refused_where_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArgumentError, match="step has no load_state_dict"):
        elastic.State(tmp_path, step=3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="it has no parts"):
        elastic.State(tmp_path)
    with pytest.raises(ArgumentError, match="save_every is a number of steps"):
        elastic.State(tmp_path, save_every=-1, model=nn.Linear(1, 1))
    with pytest.raises(ArgumentError, match="3 rows has none for some of 4 ranks"):
        samplers(4, monkeypatch, 10, 3)
    with pytest.raises(ArgumentError, match="2 rows make no batch of 4"):
        samplers(1, monkeypatch, 2, 4, drop_last=True)
    everywhere = flow.placement("cpu", [0])
    model = nn.Linear(2, 2).to_global(placement=everywhere, sbp=flow.sbp.broadcast)
    with pytest.raises(ArgumentError, match=r"model\.weight is a global tensor"):
        elastic.State(tmp_path, model=model).commit()
