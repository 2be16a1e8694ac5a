"""Small clients beside PyTorch, through the runner of `make clients`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.__main__ import main
from tests.clients.records import PAGE


def test_small_clients_agree_with_pytorch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    arguments = ["--only", "einops,torchinfo", "--folder", str(tmp_path), "--page", str(page)]
    assert main(arguments) == 0, capsys.readouterr().out
    first = capsys.readouterr().out
    assert first.count("agree") == 2
    assert main(arguments) == 0
    assert capsys.readouterr().out == first  # not run again: the seconds are the same
