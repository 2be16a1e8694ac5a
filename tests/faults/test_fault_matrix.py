"""Faults in every phase of a job on a real cluster: five here, all 240 by `make faults`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from campaigns.matrix import (
    CELLS,
    NOTICED_SLACK_S,
    PHASES,
    SIGNALS,
    TARGETS,
    Cell,
    run_cells,
    sample,
    table,
)
from oneflow.services.failpoints import FAILPOINTS

SAMPLE = 16  # each phase once, and each signal to each target
IN_CI = sample(SAMPLE)[6:11]  # faults of a job that runs: each target and each signal
SLACK_S = 15.0  # a busy machine may be late: what counts here is that it is noticed, and by whom


def test_the_matrix_is_whole() -> None:
    assert len(set(CELLS)) == 240 == len(PHASES) * len(TARGETS) * len(SIGNALS)
    assert set(PHASES.values()) <= set(FAILPOINTS)
    chosen = sample(SAMPLE)
    assert len(set(chosen)) == SAMPLE
    assert {c.phase for c in chosen} == set(PHASES)
    assert {(c.target, c.signal) for c in chosen} == {(t, s) for t in TARGETS for s in SIGNALS}
    assert {c.target for c in IN_CI} == set(TARGETS)
    assert {c.signal for c in IN_CI} == set(SIGNALS)


@pytest.mark.timeout(900)
def test_a_sample_of_faults_leaves_a_whole_cluster(tmp_path: Path) -> None:
    _run(tmp_path, IN_CI, SLACK_S, is_short=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_faults_leave_a_whole_cluster(tmp_path: Path) -> None:
    _run(tmp_path, CELLS, NOTICED_SLACK_S)


def _run(folder: Path, cells: Sequence[Cell], slack_s: float, is_short: bool = False) -> None:
    outcomes = run_cells(folder, cells, slack_s=slack_s, is_short=is_short)
    print(table(outcomes))
    assert len(outcomes) == len(cells)
    wrong = [f"{o.cell}: {o.error}" for o in outcomes if o.error]
    assert not wrong, "\n".join(wrong)
