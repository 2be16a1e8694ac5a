"""The reference of the site: a page for each module that defines public names, from the public
table and the docstrings. `make docs` writes them.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from oneflow import surfaces
from oneflow.api import FLOAT, INTEGER, ROWS, SAME, SAME_TYPE, Row
from oneflow.surfaces import IN_PLACE

PREFIXES = {
    "flow": "flow.",
    "tensor": "x.",
    "F": "F.",
    "linalg": "flow.linalg.",
    "special": "flow.special.",
    "fft": "flow.fft.",
    "signal.windows": "flow.signal.windows.",
    "_C": "flow._C.",
    "nn": "nn.",
    "optim": "flow.optim.",
    "autograd": "flow.autograd.",
}
TORCH = {"flow": "", "tensor": "Tensor.", "F": "nn.functional.", "_C": ""}
PROMOTION = {
    FLOAT: "integers and bools become floats",
    INTEGER: "bools become int64",
    SAME_TYPE: "operands meet in one dtype",
}
HEAD = """\
# Reference

Every function and class that users reach by name, by the module that defines it. `x` stands for a
tensor, `F` for `oneflow.nn.functional`, `nn` for `oneflow.nn`; a trailing underscore writes
into the first argument. `dim` and `keepdim` may be spelled `axis` and `keepdims` everywhere.

"""


def places(row: Row) -> str:
    """Where users find a row, most usual name first."""
    found = []
    for surface in row.surfaces:
        tail = "_" if surface in IN_PLACE else ""
        space = IN_PLACE.get(surface, surface)
        prefix = PREFIXES.get(space, f"flow.{space}.")
        found += [f"`{prefix}{name}{tail}`" for name in row.names]
    return " ".join(found)


def member(row: Row) -> Any:
    """The function or class that a row hands out."""
    space = IN_PLACE.get(row.surfaces[0], row.surfaces[0])
    tail = "_" if row.surfaces[0] in IN_PLACE else ""
    return surfaces.find(space, f"{row.names[0]}{tail}")


def signature(made: Any) -> str:
    """The parameters without their annotations; "" for what is not called."""
    if not callable(made):
        return ""
    try:
        found = inspect.signature(made)
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    text = str(inspect.Signature([p for p in bare if p.name != "self"]))
    return re.sub(r"<[^<>]*>", "...", text)  # defaults without a notation in Python


def documented(made: Any) -> str:
    """The docstring as Markdown: lines that are set in become code."""
    text = inspect.getdoc(made) if callable(made) else None
    lines, code = [], False
    for line in (text or "").splitlines():
        begins = line.startswith("    ") and not (
            lines and lines[-1].startswith(("* ", "- ", "  "))
        )
        if begins and not code and (not lines or not lines[-1]):
            lines.append("```python")
            code = True
        elif code and line and not line.startswith("    "):
            lines.insert(len(lines) - (not lines[-1]), "```")
            code = False
        lines.append(line[4:] if code else line)
    return "\n".join(lines + ["```"] * code)


def counterpart(row: Row) -> str:
    """The dotted name in PyTorch."""
    if row.torch is None:
        return ""
    if row.torch != SAME:
        return f"`torch.{row.torch}`"
    space = IN_PLACE.get(row.surfaces[0], row.surfaces[0])
    return f"`torch.{TORCH.get(space, f'{space}.')}{row.names[0]}`"


def entry(rows: list[Row]) -> str:
    """The part of a page for one function or class, under the name that its module gives it. rows:
    all that hand it out.
    """
    first = rows[0]
    made = member(first)
    kind = "class" if isinstance(made, type) else "function" if callable(made) else "data"
    lines = [f":::{{py:{kind}}} {first.own}{signature(made)}", "", documented(made), ""]
    notes = [f"Found as {' '.join(places(row) for row in rows)}."]
    promotion = PROMOTION.get(first.promote or "")
    if promotion:
        notes.append(f"{promotion[0].upper()}{promotion[1:]}.")
    if counterpart(first):
        notes.append(f"PyTorch: {counterpart(first)}.")
    return "\n".join([*lines, " ".join(notes), ":::", ""])


def page(home: str, rows: list[Row]) -> str:
    """The page of one module."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.own, []).append(row)
    about = (importlib.import_module(home).__doc__ or "").strip()
    parts = [f"# {home.removeprefix('oneflow.')}", "", about, ""]
    parts += [f":::{{py:currentmodule}} {home}", ":::", ""]
    return "\n".join([*parts, *(entry(found) for found in by_name.values())])


def pages() -> dict[str, str]:
    """Name of each file -> its text."""
    homes: dict[str, list[Row]] = {}
    for row in ROWS:
        homes.setdefault(row.home, []).append(row)
    found = {f"{home.removeprefix('oneflow.')}.md": page(home, homes[home]) for home in homes}
    names = "\n".join(sorted(name.removesuffix(".md") for name in found))
    found["index.md"] = f"{HEAD}```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"
    return found


def write(folder: Path) -> None:
    """Write all pages into a folder; what has not changed is not touched."""
    folder.mkdir(exist_ok=True)
    wanted = pages()
    for path in folder.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    write(Path(__file__).parent / "reference")
