"""A graph gives results the layouts that eager execution gives them, for every op of the registry;
what the ranks do is in graph_sbp_program.py."""

from __future__ import annotations

import re

from tests.support.launching import launch

NUM_RANKS = 4
LEAST_PAIRS = 300


def test_results_lie_alike_eagerly_and_in_graphs() -> None:
    result = launch(NUM_RANKS, "graph_sbp_program")
    assert result.returncode == 0, result.stdout[-9000:] + result.stderr[-3000:]
    counts = [int(n) for n in re.findall(r": (\d+) pairs alike", result.stdout)]
    assert len(counts) == NUM_RANKS
    assert min(counts) >= LEAST_PAIRS
