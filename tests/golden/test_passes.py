"""Graph text before and after every pass; regenerate.py rewrites the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from oneflow.scheduler.compiler.pipeline import PASSES

from .passes_by_text import TRACED, read_sections, run_pass

HERE = Path(__file__).resolve().parent

NAMES = [p.__name__ for p in PASSES]
BEFORE = dict(zip(NAMES, [TRACED, *NAMES[:-1]], strict=True))
FILES = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("rewrite", PASSES, ids=NAMES)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_pass_turns_the_text_before_into_the_text_after(path, rewrite):
    sections = read_sections(path)
    name = rewrite.__name__
    assert run_pass(rewrite, sections[BEFORE[name]]) == sections[name]


def test_there_is_a_file_for_every_kind_of_parallelism():
    assert {p.stem for p in FILES} >= {"data_parallel", "tensor_parallel", "pipeline", "grid"}
