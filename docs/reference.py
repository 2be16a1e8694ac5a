"""Writes docs/REFERENCE.md: every public function with its signature, from the public table."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from oneflow import surfaces
from oneflow.api import FLOAT, INTEGER, ROWS, SAME, SAME_TYPE, Row
from oneflow.surfaces import IN_PLACE

ROOT = Path(__file__).resolve().parents[1]
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
into the first argument. `dim` and `keepdim` may be spelled `axis` and `keepdims` everywhere. The
last column names the counterpart in PyTorch that the tests compare with, or none. `make stubs`
writes this page from `oneflow/api` and the docstrings.
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


def summary(row: Row, made: Any) -> str:
    """The first sentence of the docstring, and how operands are promoted."""
    documented = inspect.getdoc(made) if callable(made) else None
    text = " ".join((documented or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.;]) (?=[A-Z`(])", text)[0] if text else ""
    promotion = PROMOTION.get(row.promote or "")
    if promotion:
        sentence = f"{sentence.rstrip('.')}; {promotion}."
    return sentence.replace("|", "\\|")


def counterpart(row: Row) -> str:
    """The dotted name in PyTorch."""
    if row.torch is None:
        return ""
    if row.torch != SAME:
        return f"`torch.{row.torch}`"
    space = IN_PLACE.get(row.surfaces[0], row.surfaces[0])
    return f"`torch.{TORCH.get(space, f'{space}.')}{row.names[0]}`"


def line(row: Row) -> str:
    """One line of a table."""
    made = member(row)
    taken = signature(made).replace("|", "\\|")
    call = f"`{row.names[0]}{taken}`"
    return f"| {call} | {places(row)} | {summary(row, made)} | {counterpart(row)} |"


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    home = ""
    for row in ROWS:
        if row.home != home:
            home = row.home
            about = (importlib.import_module(home).__doc__ or "").strip().split("\n\n")[0]
            parts.append(f"\n## {home.removeprefix('oneflow.')}\n\n{about}\n")
            parts.append("| call | where | meaning | PyTorch |\n|---|---|---|---|")
        parts.append(line(row))
    return "\n".join(parts) + "\n"


def main() -> None:
    (ROOT / "docs/REFERENCE.md").write_text(render())


if __name__ == "__main__":
    main()
