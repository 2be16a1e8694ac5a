"""Graph text before and after every pass; regenerate.py rewrites the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from oneflow.scheduler.compiler.passes import PASSES

from .passes_by_text import read_sections, run_pass

HERE = Path(__file__).resolve().parent

FILES = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_pass_turns_the_text_before_into_the_text_after(path, name):
    sections = read_sections(path)
    assert run_pass(name, sections) == sections[name]


def test_there_is_a_file_for_every_kind_of_parallelism():
    assert {p.stem for p in FILES} >= {"data_parallel", "tensor_parallel", "pipeline", "grid"}
