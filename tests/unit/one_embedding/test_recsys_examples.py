"""The models of examples/recsys: in eager mode and in graphs they learn, with the same losses."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.jobs.sources import Access

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "recsys"
MODELS = {
    "dlrm": "Dlrm",
    "deepfm": "DeepFm",
    "xdeepfm": "XDeepFm",
    "dcn": "Dcn",
    "pnn": "Pnn",
    "mmoe": "Mmoe",
    "wide_and_deep": "WideAndDeep",
}
OWN = ("clicks", "layers", "train", *MODELS)
STEPS, ALIKE = 20, 10


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that imports a file of the examples, as their own imports do."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in OWN:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in OWN:
        sys.modules.pop(name, None)


def test_every_model_has_a_test() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(OWN)


@pytest.mark.parametrize("name", MODELS)
def test_models_learn_alike_in_eager_mode_and_in_graphs(name: str, example: Any) -> None:
    clicks, layers, train = (example(n) for n in ("clicks", "layers", "train"))
    truth = clicks.Truth(0)
    curves = []
    for is_graph in (False, True):
        flow.manual_seed(0)
        model = getattr(example(name), MODELS[name])(layers.Store())
        optimizer = flow.optim.Adagrad(model.parameters(), lr=0.05)
        log = (truth.draw(64, part) for part in range(STEPS))
        curves.append(train.train(model, optimizer, log, is_graph)[0])
        del model, optimizer
    # Later on rounding may have moved a ReLU's input to the other side of 0.
    np.testing.assert_allclose(curves[0][:ALIKE], curves[1][:ALIKE], rtol=2e-4)
    np.testing.assert_allclose(curves[0], curves[1], rtol=2e-2)
    assert np.mean(curves[0][-5:]) < np.mean(curves[0][:5])


def test_jobs_are_fed_as_scripts_are(example: Any, tmp_path: Path) -> None:
    clicks, layers, train = (example(n) for n in ("clicks", "layers", "train"))
    clicks.write(tmp_path / "clicks.csv", 64, seed=3)
    model = example("mmoe").Mmoe(layers.Store(str(tmp_path / "rows")))
    optimizer = flow.optim.Adagrad(model.parameters(), lr=0.05)
    data = train.job_data(tmp_path / "clicks.csv", model.tasks).batch(16)
    train.Step(model, optimizer).export(tmp_path / "mmoe.job", data=data)
    (batch,) = clicks.read(tmp_path / "clicks.csv", 64)
    with flow.jobs.load(tmp_path / "mmoe.job") as file:
        assert [told["name"] for told in file.tables] == ["fields"]
        found = file.open_data(Access())
    wanted = {"numbers": batch.numbers, "ids": batch.ids, "labels": train.labels_of(batch, 2)}
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_logs_are_read_as_they_were_drawn(example: Any, tmp_path: Path) -> None:
    clicks = example("clicks")
    path = tmp_path / "clicks.csv"
    clicks.write(path, 100, seed=3, part_rows=40)
    got = list(clicks.read(path, 30))
    assert [len(batch.click) for batch in got] == [30, 30, 30]
    drawn = [clicks.Truth(3).draw(rows, part) for part, rows in enumerate((40, 40, 20))]
    for field in ("numbers", "ids", "click", "buy", "probability"):
        want = np.concatenate([getattr(batch, field) for batch in drawn])[:90]
        np.testing.assert_array_equal(np.concatenate([getattr(b, field) for b in got]), want)
        assert got[0].ids.dtype == np.int64


def test_the_auc_is_the_share_of_pairs_in_order(example: Any, rng: np.random.Generator) -> None:
    label, score = rng.random(60) < 0.4, np.round(rng.normal(size=60), 1)
    ahead = score[label][:, None] - score[~label][None]
    wanted = ((ahead > 0) + 0.5 * (ahead == 0)).mean()
    assert example("clicks").auc(label.astype(float), score) == pytest.approx(wanted)


def test_true_probabilities_are_those_of_the_clicks(example: Any) -> None:
    batch = example("clicks").Truth(1).draw(20_000, 0)
    bins = np.digitize(batch.probability, np.linspace(0, 1, 11)) - 1
    for k in range(10):
        of_bin = bins == k
        error = (batch.click[of_bin] - batch.probability[of_bin]).mean()
        assert abs(error) < 5 * 0.5 / np.sqrt(of_bin.sum())
    assert (batch.buy <= batch.click).all()
