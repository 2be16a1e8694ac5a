"""Rewrites the golden files: `python -m tests.golden.regenerate`. Read the diff afterwards."""

from __future__ import annotations

from pathlib import Path

from oneflow.core.graph import LogicalGraph
from oneflow.core.placement import Placement
from tests.unit.scheduler.compiler.graph_builder import mlp

from .passes_by_text import run_by_text, write_sections

HERE = Path(__file__).resolve().parent


def cases() -> dict[str, LogicalGraph]:
    """File name -> the graph as traced."""
    two, grid = Placement("cpu", [0, 1]), Placement("cpu", [[0, 1], [2, 3]])
    stages = [Placement("cpu", [0]), Placement("cpu", [1])]
    return {
        "data_parallel": mlp([two], "S(0)", "B", "B"),
        "data_parallel_pieces": mlp([two], "S(0)", "B", "B", num_pieces=2),
        "tensor_parallel": mlp([two], "B", "S(0)", "S(1)"),
        "pipeline": mlp(stages, "B", "B", "B", num_pieces=4),
        "grid": mlp([grid], "(S(0), B)", "(B, S(0))", "(B, S(1))"),
    }


def main() -> None:
    for name, graph in cases().items():
        write_sections(HERE / f"{name}.txt", run_by_text(str(graph)))
        print(f"wrote {name}.txt")


if __name__ == "__main__":
    main()
