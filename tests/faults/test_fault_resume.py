"""A job that is disturbed ends with the very bits of one that is not: a proof here, 50 by
`make faults`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns.resume import FAULTS, NAMES, Proof, run_proofs

IN_CI = 5  # kills a rank of the embedding just before a checkpoint gets its name
PROOFS = 50


def test_fifty_proofs_cover_all_programs_and_faults() -> None:
    drawn = [Proof.draw(seed) for seed in range(PROOFS)]
    assert {proof.program for proof in drawn} == set(NAMES)
    assert {proof.fault for proof in drawn} == set(FAULTS)


def test_a_disturbed_job_ends_with_the_same_bits(tmp_path: Path) -> None:
    ((proof, said),) = run_proofs(tmp_path, [IN_CI])
    assert not said, f"{proof}: {said}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_disturbed_jobs_end_with_the_same_bits(tmp_path: Path) -> None:
    found = run_proofs(tmp_path, range(PROOFS))
    assert not [(proof, said) for proof, said in found if said]
    assert len(found) == PROOFS
