"""Runs each pass on the text that the pass before it printed; reads and writes such texts."""

from __future__ import annotations

import re
from pathlib import Path

from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.pipeline import PASSES, Pass
from oneflow.scheduler.compiler.verify import verify

TRACED = "traced"


def run_pass(rewrite: Pass, text: str) -> str:
    """The graph's text after one pass, verified."""
    graph = parse_graph(text)
    config = JobConfig(graph.name, num_pieces=graph.num_pieces)
    rewrite(graph, config, Cluster(4))
    verify(graph, after=rewrite.__name__)
    return str(graph)


def run_by_text(text: str) -> dict[str, str]:
    """The text as traced and after each pass, by name."""
    sections = {TRACED: text}
    for rewrite in PASSES:
        text = sections[rewrite.__name__] = run_pass(rewrite, text)
    return sections


def write_sections(path: Path, sections: dict[str, str]) -> None:
    """A pass that changes nothing is written as an empty section."""
    blocks, last = [], ""
    for name, text in sections.items():
        blocks.append(f"---- {name} ----\n" + (text + "\n" if text != last else ""))
        last = text
    path.write_text("\n".join(blocks), encoding="utf-8")


def read_sections(path: Path) -> dict[str, str]:
    """The inverse of `write_sections`."""
    parts = re.split(r"^---- (\w+) ----\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections: dict[str, str] = {}
    last = ""
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        last = sections[name] = text.strip() or last
    return sections
