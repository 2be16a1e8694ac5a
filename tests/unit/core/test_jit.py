"""Compilation where numba may or may not keep its machine code."""

from __future__ import annotations

from pathlib import Path

import pytest

from oneflow.core.jit import compiled


def double(x: int) -> int:
    return 2 * x


def test_machine_code_is_kept_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    assert compiled(double)(3) == 6
    assert list(tmp_path.rglob("*.nbi"))


def test_without_a_folder_for_it_every_process_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.caching.FunctionCache._impl_class._locator_classes", [])
    assert compiled(double, nogil=True)(3) == 6
