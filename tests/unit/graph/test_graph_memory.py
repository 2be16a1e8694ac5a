"""Memory of a step: its order, its offsets and the values that neither changes."""

from __future__ import annotations

from typing import Any

import oneflow as flow
from oneflow import nn

NUMEL = 32768
"""Elements of a temporary of 128 KiB."""


class UsesSixLate(nn.Graph):
    """Six temporaries that the user makes at once and uses one after another."""

    def build(self, x: Any) -> Any:
        made = [x * (k + 2.0) for k in range(6)]
        total = x.sum()
        for temporary in made:
            total = total + (temporary * temporary).sum()
        return total


def arena_of(mode: str, *, compress: bool = False) -> tuple[int, float]:
    """Bytes of registers and scratch memory, and what the graph gave."""
    graph = UsesSixLate()
    graph.config.enable_straighten_algorithm(mode)
    graph.config.enable_compress_memory(compress)
    result = graph(flow.ones(NUMEL)).item()
    return graph._compiled.job.bound.arena_nbytes, result


def test_memory_first_makes_late_what_is_used_late() -> None:
    arenas, results = zip(*(arena_of(mode) for mode in ("MemoryFirst", "Disable")), strict=True)
    register = 4 * NUMEL  # of the input
    assert arenas[0] < register + 2.1 * register
    assert arenas[1] > register + 6 * register
    assert results[0] == results[1] == NUMEL * (1 + sum(k * k for k in range(2, 8)))


def test_compressed_memory_is_no_larger_and_gives_the_same() -> None:
    plain, expected = arena_of("MemoryFirst")
    found, result = arena_of("MemoryFirst", compress=True)
    assert found <= plain and result == expected
