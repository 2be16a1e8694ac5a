"""Checks the claims of docs/BOXING.md: its outputs, its table, its claim about bytes.

`python -m tests.unit.boxing.test_boxing_page` writes the outputs anew.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from oneflow.boxing import nccl
from oneflow.boxing.__main__ import main
from oneflow.boxing.bound import lower_bound_nbytes
from oneflow.boxing.route import boxing_bytes
from oneflow.boxing.transitions import BOX_KINDS, TRANSITIONS
from oneflow.core.dtype import float32
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType

from .boxing_layouts import all_sbp

PATH = Path(__file__).resolve().parents[3] / "docs" / "BOXING.md"
PAGE = PATH.read_text()
BLOCK = re.compile(r"```console\n\$ python -m oneflow.boxing (.*)\n((?:.*\n)*?)```\n")
SECONDS = re.compile(r" +[\d.e+-]+ (?:us|ms|s)\b")


def output_of(arguments: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(shlex.split(arguments)) == 0
    return out.getvalue()


def without_seconds(text: str) -> str:
    """Predicted times, and the widths of their column, may change with the model."""
    lines = [SECONDS.sub("", line).removesuffix("predicted").rstrip() for line in text.splitlines()]
    return "\n".join(lines)


def test_the_outputs_are_what_the_command_prints() -> None:
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) == PAGE.count("```console") >= 2
    for arguments, shown in blocks:
        assert without_seconds(shown) == without_seconds(output_of(arguments)), arguments


def test_the_table_is_the_table() -> None:
    bytes_in = {
        "2T(p-1)/p": lambda t, p: 2 * t * (p - 1) / p,
        "T(p-1)/p": lambda t, p: t * (p - 1) / p,
        "T(p-1)/p^2": lambda t, p: t * (p - 1) / p**2,
        "0": lambda t, p: 0,
    }
    rows = re.findall(
        r"^\| ([SBP]) \| ([SBP])\S* ?[^|]*\| `(\w+)` \| (\S+) \| (\d) \|$", PAGE, re.M
    )
    assert {(a, b) for a, b, *_ in rows} == set(TRANSITIONS)
    for a, b, kind, formula, waits in rows:
        row = TRANSITIONS[a, b]
        assert (row.kind, row.hops) == (kind, int(waits))
        assert row.bytes_in(1200, 4) == bytes_in[formula](1200, 4)
    assert all(f"* `{kind}`" in PAGE for kind in BOX_KINDS)


def test_every_setter_is_on_the_page() -> None:
    setters = [n for n in vars(nccl) if n.split("_")[0] in ("set", "allow", "enable", "disable")]
    setters.remove("set_fused")
    for name in setters:
        short = name.replace("allow_fuse", "...") if "_fuse_" in name else name
        assert name in PAGE or f"`{short}`" in PAGE, name


def pairs() -> Iterator[tuple[NdSbp, Placement, NdSbp, Placement]]:
    """Lines of 2, 3 and 4 ranks; a grid; a grid and a line; two lines without a common rank."""
    for p in (2, 3, 4):
        line = Placement("cpu", list(range(p)))
        for a, b in itertools.product(all_sbp(1), repeat=2):
            yield a, line, b, line
    grid, line = Placement("cpu", [[0, 1], [2, 3]]), Placement("cpu", [0, 1, 2, 3])
    for a in all_sbp(2):
        for b in all_sbp(2):
            yield a, grid, b, grid
        for c in all_sbp(1):
            yield a, grid, c, line
            yield c, line, a, grid
    two, three = Placement("cpu", [0, 1]), Placement("cpu", [2, 3, 4])
    for a, b in itertools.product(all_sbp(1), repeat=2):
        yield a, two, b, three
        yield a, three, b, two


def test_large_tensors_on_one_host_meet_the_lower_bound() -> None:
    type = TensorType((1024, 1024), float32)
    listed = list(pairs())
    assert f"Of the {len(listed)} pairs" in PAGE
    for pair in listed:
        assert boxing_bytes(type, *pair) == lower_bound_nbytes(type, *pair), pair


if __name__ == "__main__":
    PATH.write_text(
        BLOCK.sub(
            lambda m: f"```console\n$ python -m oneflow.boxing {m[1]}\n{output_of(m[1])}```\n", PAGE
        )
    )
