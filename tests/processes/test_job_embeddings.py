"""Jobs whose graphs hold embeddings: data roots, snapshots beside checkpoints, inference."""

from __future__ import annotations

import gc
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import RowStoreError
from oneflow.jobs.order import Cursor
from oneflow.jobs.saving import saved_steps
from tests.support.launching import launch
from tests.support.simulated.worker_peer import INFERENCE, Attempt
from tests.unit.one_embedding.making import embedding, one

from .test_job_workers import SLOWLY, answer, ask, values

TABLES, WIDTH, BATCH, STEPS = 2, 4, 8, 24
IDS = np.random.default_rng(0).zipf(1.2, size=(64, TABLES)) % 200
TARGETS = np.random.default_rng(1).normal(size=64).astype(np.float32)


class Model(nn.Module):
    def __init__(self, path: str, kind: str, read_only: bool = False) -> None:
        super().__init__()
        if kind == "disk":
            options = one.make_cached_ssd_store_options(1, path, 1000, size_factor=3)
        else:
            options = one.make_device_mem_store_options(path, 1000, size_factor=3)
        if read_only:
            options["kv_store"]["persistent_table"]["read_only"] = True
        self.rows = embedding(WIDTH, TABLES, store_options=options, name="users")
        self.top = nn.Linear(TABLES * WIDTH, 1)
        for i, x in enumerate(self.top.parameters()):
            x.data = flow.tensor(np.random.default_rng(i).normal(size=x.shape).astype(np.float32))

    def forward(self, ids: Any) -> Any:
        return self.top(self.rows(ids).flatten(1)).squeeze(1)


class Train(nn.Graph):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.Adam(model.parameters(), lr=0.05))

    def build(self, x: Any, y: Any) -> Any:
        loss = ((self.model(x) - y) ** 2).mean()
        loss.backward()
        return loss


class Predict(nn.Graph):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Any) -> Any:
        return self.model(x)


def data() -> Any:
    return flow.jobs.data.arrays(x=IDS, y=TARGETS).shuffle(3).batch(BATCH).repeat()


def options_of() -> dict[str, Any]:
    return {"data": data(), "steps": STEPS, "checkpoint_every": 2}


def export_training(folder: Path, kind: str = "memory") -> Path:
    """A job file whose rows lie in `folder`/rows."""
    path = folder / "train.job"
    train = Train(Model(str(folder / "rows"), kind))
    train.export(path, **options_of())
    return path


def train_here(model: Model, first: int = 0, steps: int = STEPS) -> list[float]:
    """Losses of the same training in this process."""
    graph, batches, cursor, found = Train(model), data().batches, Cursor(), []
    for step in range(steps):
        rows = batches.rows(cursor, 0, BATCH)
        if step >= first:
            found.append(graph(flow.tensor(IDS[rows]), flow.tensor(TARGETS[rows])).item())
        cursor = batches.after(cursor)
    return found


@pytest.fixture(scope="module")
def expected() -> list[float]:
    return train_here(Model("", "memory"))


def allowing(folder: Path) -> dict[str, str]:
    return {"ONEFLOW_DATA_ROOTS": str(folder)}


@pytest.mark.parametrize(("kind", "num_ranks"), [("memory", 1), ("disk", 2)])
def test_a_killed_job_goes_on_with_its_rows_to_the_last_bit(
    kind: str, num_ranks: int, tmp_path: Path, expected: list[float]
) -> None:
    path = export_training(tmp_path, kind)
    env = allowing(tmp_path / "rows")
    first = Attempt(path, tmp_path / "job", num_ranks, env=env | SLOWLY)
    checkpoint = first.until_checkpoint(6).checkpoint
    first.workers[-1].process.send_signal(signal.SIGKILL)
    first.wait()
    rest = {"number": 2, "resume_from": checkpoint, "env": env}
    found = values(Attempt(path, tmp_path / "job", num_ranks, **rest).succeeds())
    if num_ranks == 1:
        assert found.tolist() == expected
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    snapshots = os.listdir(tmp_path / "rows" / f"0-{num_ranks}" / "snapshots")
    names = [name.partition(".")[0] for name in snapshots if not name.startswith(".")]
    kept = sorted(f"job1-step-{step}" for step in saved_steps(tmp_path / "job" / "checkpoints"))
    assert len(kept) == 2 and sorted(names) == ["job1-end", *kept]
    state = flow.load(tmp_path / "job" / "checkpoints" / "step-24")
    assert state["rows"]["users"].startswith("job1-step-24.")
    assert json.loads((tmp_path / "job" / "outputs" / "rows.json").read_text()) == {
        "users": "job1-end"
    }


def test_a_job_takes_over_rows_and_inference_reads_those_that_it_left(
    tmp_path: Path, expected: list[float]
) -> None:
    model = Model(str(tmp_path / "rows"), "memory")
    assert train_here(model, steps=10) == expected[:10]
    graph = Train(model)
    graph.export(tmp_path / "more.job", data=data(), steps=4)
    wanted = train_here(model, first=0, steps=4)  # what the job begins with
    trained = model.rows(flow.tensor(IDS)).detach().numpy()
    with_owner = Attempt(tmp_path / "more.job", tmp_path / "a", 1, env=allowing(tmp_path))
    assert with_owner.wait() == [78]
    assert f"in use by another run, process {os.getpid()} on" in with_owner.workers[0].failed.cause
    del model, graph
    gc.collect()
    job = Attempt(tmp_path / "more.job", tmp_path / "b", 1, env=allowing(tmp_path)).succeeds()
    np.testing.assert_allclose(values(job), wanted, rtol=1e-6)

    reader = Model(str(tmp_path / "rows"), "memory", read_only=True)
    reader.rows.load_snapshot("job1-end")
    np.testing.assert_allclose(
        reader.rows(flow.tensor(IDS)).detach().numpy(), trained, rtol=1e-4, atol=1e-5
    )
    Predict(reader).export(tmp_path / "infer.job", inputs={"x": flow.tensor(IDS[:4])})
    asked = np.concatenate([IDS[:3], [[7000, 8000]]])  # the last has no rows
    scores = reader(flow.tensor(asked)).numpy()
    infer = Attempt(
        tmp_path / "infer.job", tmp_path / "c", 2, kind=INFERENCE, env=allowing(tmp_path)
    )
    options = one.make_device_mem_store_options(str(tmp_path / "rows"), 1000, size_factor=3)
    writer = embedding(WIDTH, TABLES, store_options=options)  # which has the folder meanwhile
    writer(flow.tensor(IDS))
    for rank in range(2):
        ask(infer, rank, asked, rank=rank)
        (found,) = answer(infer, rank, rank=rank).outputs
        np.testing.assert_allclose(np.frombuffer(found.data, np.float32), scores, rtol=1e-6)
    infer.kill()
    with pytest.raises(RowStoreError, match="is opened read-only"):
        reader.rows.save_snapshot("a")


def test_rows_lie_where_jobs_may_write(tmp_path: Path) -> None:
    path = export_training(tmp_path)
    (tmp_path / "other").mkdir()
    found = Attempt(path, tmp_path / "job", 1, env=allowing(tmp_path / "other"))
    assert found.wait() == [65]
    cause = found.workers[0].failed.cause
    assert "embedding 'users'" in cause and "is in no folder that jobs may use" in cause
    assert not (tmp_path / "rows").exists()
    with pytest.raises(flow.jobs.JobFileError, match="needs a persistent_path"):
        Train(Model("", "memory")).export(tmp_path / "a.job", data=data())


@pytest.mark.slow
def test_a_graph_whose_ranks_exchange_ids_is_a_job(tmp_path: Path, expected: list[float]) -> None:
    result = launch(2, "job_embeddings_program", tmp_path)
    assert result.returncode == 0, result.stderr[-4000:]
    job = Attempt(tmp_path / "split.job", tmp_path / "job", 2, env=allowing(tmp_path)).succeeds()
    np.testing.assert_allclose(values(job), expected, rtol=1e-5)
    for rank in range(2):
        assert list((tmp_path / "rows" / f"{rank}-2" / "snapshots").glob("job1-end.json"))
