"""The models of examples/recsys on several ranks; their work there is in recsys_program.py."""

from __future__ import annotations

import pytest

from tests.support.launching import check_done, launch
from tests.unit.one_embedding.test_recsys_examples import MODELS

FEW = ("dlrm", "mmoe")
"""Models that are run in every test; the others take their time."""


def _ranks_learn(num_ranks: int, names: tuple[str, ...]) -> None:
    result = launch(num_ranks, "recsys_program", *names)
    assert result.returncode == 0, result.stderr[-9000:]
    for name in names:
        check_done(result, num_ranks, f": {name}")  # one model's name ends as another's


def test_ranks_learn_what_one_learns() -> None:
    _ranks_learn(2, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_every_model_learns_on_ranks_what_it_learns_on_one(num_ranks: int) -> None:
    _ranks_learn(num_ranks, tuple(MODELS))
