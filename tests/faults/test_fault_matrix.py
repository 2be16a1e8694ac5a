"""Faults in every phase of a job on a real cluster: a sample here, all 240 by `make faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from oneflow.core.failpoints import FAILPOINTS

from .fault_matrix import CELLS, NOTICED_SLACK_S, PHASES, SIGNALS, TARGETS, run_cells, sample, table

SAMPLE = 16  # each phase once, and each signal to each target
SLACK_S = 15.0  # a busy machine may be late: what counts here is that it is noticed, and by whom


def test_the_matrix_is_whole() -> None:
    assert len(set(CELLS)) == 240 == len(PHASES) * len(TARGETS) * len(SIGNALS)
    assert set(PHASES.values()) <= set(FAILPOINTS)
    chosen = sample(SAMPLE)
    assert len(set(chosen)) == SAMPLE
    assert {c.phase for c in chosen} == set(PHASES)
    assert {(c.target, c.signal) for c in chosen} == {(t, s) for t in TARGETS for s in SIGNALS}


@pytest.mark.timeout(900)
def test_a_sample_of_faults_leaves_a_whole_cluster(tmp_path: Path) -> None:
    _run(tmp_path, SAMPLE, SLACK_S)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_faults_leave_a_whole_cluster(tmp_path: Path) -> None:
    _run(tmp_path, len(CELLS), NOTICED_SLACK_S)


def _run(folder: Path, count: int, slack_s: float) -> None:
    is_short = count < len(CELLS)
    cells = sample(count) if is_short else CELLS
    outcomes = run_cells(folder, cells, slack_s=slack_s, is_short=is_short)
    print(table(outcomes))
    assert len(outcomes) == count
    wrong = [f"{o.cell}: {o.error}" for o in outcomes if o.error]
    assert not wrong, "\n".join(wrong)
