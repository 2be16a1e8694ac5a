"""A graph gives results the layouts that eager execution gives them, for every op of the registry;
the work of the ranks is in graph_sbp_program.py."""

from __future__ import annotations

import re

import pytest

from tests.support.launching import launch

NUM_RANKS = 4
LEAST_PAIRS = 300


@pytest.mark.parametrize("words", [(), pytest.param(("all",), marks=pytest.mark.slow)])
def test_results_lie_alike_eagerly_and_in_graphs(words: tuple[str, ...]) -> None:
    result = launch(NUM_RANKS, "graph_sbp_program", *words)
    assert result.returncode == 0, result.stdout[-9000:] + result.stderr[-3000:]
    counts = [int(n) for n in re.findall(r": (\d+) pairs alike", result.stdout)]
    assert len(counts) == NUM_RANKS
    assert min(counts) >= LEAST_PAIRS
