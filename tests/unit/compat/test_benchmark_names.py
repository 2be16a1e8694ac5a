"""utils.benchmark and quasirandom."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import pytest
import torch
from torch.utils.benchmark.utils import common

import oneflow as flow
from oneflow.core.errors import ArgumentError, OneFlowError
from oneflow.quasirandom import SobolEngine
from oneflow.utils.benchmark import Compare, Measurement, TaskSpec, Timer, select_unit

clock = itertools.count()


def test_statements_are_timed_by_the_given_clock() -> None:
    runs: list[int] = []
    timer = Timer(
        "runs.append(x)",
        "x = 3",
        timer=lambda: next(clock) * 0.5,  # half a second between two looks
        globals={"runs": runs},
        num_threads=2,
    )
    before = flow.get_num_threads()
    found = timer.timeit(200)
    assert runs == [3] * 202
    assert found.raw_times == [0.5]
    assert found.times == [0.5 / 200]
    assert flow.get_num_threads() == before
    ranged = timer.blocked_autorange(min_run_time=2.0)
    assert ranged.number_per_run == 1
    assert ranged.raw_times == [0.5] * 4
    steady = timer.adaptive_autorange(min_run_time=3.0)
    assert sum(steady.raw_times) > 3.0 and steady.meets_confidence()


def test_measurements_are_summed_up_as_pytorchs() -> None:
    times = [1e-3, 1.5e-3, 1.2e-3, 1.1e-3, 2e-3, 1.3e-3]
    mine = Measurement(10, times, TaskSpec("x", "pass", label="add", sub_label="three"))
    theirs = common.Measurement(10, times, common.TaskSpec("x", "pass", label="add"))
    for name in ("mean", "median", "iqr"):
        np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), rtol=1e-12)
    assert mine.mean == pytest.approx(statistics.fmean(times) / 10)
    assert mine.title == "add: three"
    assert "Median: 125.00 us" in repr(mine)
    (both,) = Measurement.merge([mine, mine])
    assert len(both.raw_times) == 12
    for t in (3e-9, 2e-6, 5e-3, 4.0):
        assert select_unit(t) == common.select_unit(t)


def test_a_table_has_rows_and_columns() -> None:
    found = [
        Measurement(1, [t], TaskSpec("s", "pass", label="add", sub_label=row, description=column))
        for row, column, t in (("64", "ours", 2e-6), ("64", "theirs", 4e-6), ("128", "ours", 1e-5))
    ]
    text = str(Compare(found))
    lines = text.splitlines()
    assert lines[0].strip("[-] ") == "add"
    assert lines[1].split() == ["|", "ours", "|", "theirs"]
    assert lines[3].split() == ["64", "|", "2.0", "|", "4.0"]
    assert lines[4].split() == ["128", "|", "10.0", "|"]
    assert lines[-1] == "Times are in microseconds (us)."


def test_other_languages_are_refused() -> None:
    with pytest.raises(OneFlowError, match="statements are Python"):
        Timer("x;", language="c++")


def test_sobol_points_are_pytorchs() -> None:
    mine, theirs = SobolEngine(5), torch.quasirandom.SobolEngine(5)
    np.testing.assert_allclose(mine.draw(9).numpy(), theirs.draw(9).numpy(), atol=1e-6)
    mine.fast_forward(4)
    theirs.fast_forward(4)
    np.testing.assert_allclose(mine.draw(3).numpy(), theirs.draw(3).numpy(), atol=1e-6)
    assert mine.num_generated == theirs.num_generated == 16
    assert mine.draw_base2(4).shape == (16, 5)
    with pytest.raises(ArgumentError, match="no power of 2"):
        mine.draw_base2(3)
    first = mine.reset().draw(4, dtype=flow.float64)
    assert first.dtype is flow.float64 and first[0].tolist() == [0.0] * 5


def test_shuffled_sobol_points_fill_the_cube() -> None:
    points = SobolEngine(3, scramble=True, seed=7).draw(64)
    again = SobolEngine(3, scramble=True, seed=7).draw(64)
    assert points.tolist() == again.tolist()
    counts = np.histogramdd(points.numpy(), bins=(4, 4, 4), range=[(0, 1)] * 3)[0]
    assert counts.max() == counts.min() == 1  # a point in each of 64 boxes
    with pytest.raises(ArgumentError, match="dimension"):
        SobolEngine(0)
