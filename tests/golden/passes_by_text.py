"""Runs each pass on the text that the pass before it printed; reads and writes such texts."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
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
    """Write the first texts whole, and of the others the changes of each pass to the one before."""
    blocks, last = [], ""
    for name, text in sections.items():
        body = text if name in (CONFIG, TRACED) else _changes(last, text)
        blocks.append(f"---- {name} ----\n" + (body + "\n" if body else ""))
        last = text
    path.write_text("\n".join(blocks), encoding="utf-8")


def read_sections(path: Path) -> dict[str, str]:
    """The inverse of `write_sections`."""
    parts = re.split(r"^---- (\w+) ----\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections: dict[str, str] = {}
    last = ""
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        body = text.strip("\n")
        last = sections[name] = body if name in (CONFIG, TRACED) else _changed(last, body)
    return sections


def _changes(before: str, after: str) -> str:
    """The lines that are new, after a line `@ start:stop` with the place of those they replace."""
    old, new = before.splitlines(), after.splitlines()
    lines = []
    for tag, start, stop, first, end in SequenceMatcher(None, old, new, False).get_opcodes():
        if tag != "equal":
            lines += [f"@ {start}:{stop}", *new[first:end]]
    return "\n".join(lines)


def _changed(before: str, changes: str) -> str:
    """The inverse of `_changes`."""
    old, lines, at = before.splitlines(), [], 0
    for line in changes.splitlines():
        if line.startswith("@ "):
            start, stop = map(int, line.removeprefix("@ ").split(":"))
            lines += old[at:start]
            at = stop
        else:
            lines.append(line)
    return "\n".join([*lines, *old[at:]])
