"""Runs each pass on the text that the pass before it printed; reads and writes such texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.passes import PASSES
from oneflow.scheduler.compiler.pipeline import pass_named
from oneflow.scheduler.compiler.verify import verify

CONFIG, TRACED = "config", "traced"


def run_pass(name: str, sections: dict[str, str]) -> str:
    """The text of the graph that a pass leaves, verified. It is given the graph of the text before
    it; plans, whose text does not parse, are made anew of the graph that the first of their passes
    reads.
    """
    place = PASSES.index(name)
    first = min(place, PASSES.index("group_segments"))
    graph = parse_graph(sections[PASSES[first - 1] if first else TRACED])
    config = JobConfig.from_bytes(sections[CONFIG].encode())
    made: Any = graph
    for rewrite in PASSES[first : place + 1]:
        made = pass_named(rewrite)(made, config, Cluster(4)) or made
        verify(made, after=rewrite)
    return str(made)


def run_by_text(text: str, config: JobConfig) -> dict[str, str]:
    """The text as traced and after each pass, by name."""
    sections = {CONFIG: config.to_bytes().decode(), TRACED: text}
    for name in PASSES:
        sections[name] = run_pass(name, sections)
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
