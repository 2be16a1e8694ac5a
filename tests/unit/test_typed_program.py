"""A program with types runs; `make types` checks it, so that names of the package are types."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.typed import training

ROOT = Path(__file__).resolve().parents[2]


def test_the_typed_program_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training.main(tmp_path)
    batches, accuracy, width, dtype, _, streamed = capsys.readouterr().out.split()
    assert (batches, width, dtype, streamed) == ("8", "8", "oneflow.float32", "3")
    assert 0.0 <= float(accuracy) <= 1.0


def test_the_typed_program_is_checked() -> None:
    settings = (ROOT / "pyproject.toml").read_text().partition("[tool.mypy]")[2]
    assert 'packages = ["oneflow", "tests.typed"]' in settings


@pytest.mark.parametrize("stub", ["oneflow/__init__.pyi", "oneflow/nn/__init__.pyi"])
def test_stubs_export_every_name_that_they_import(stub: str) -> None:
    """Checkers take `import A as B` for private; `device` and `dtype` were no types so."""
    for line in (ROOT / stub).read_text().splitlines():
        name, renames, other = line.rpartition(" import ")[2].partition(" as ")
        if line.startswith("from ") and renames:
            assert other == name or other.startswith("_"), line
