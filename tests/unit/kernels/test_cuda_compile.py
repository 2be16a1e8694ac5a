"""Compiling for a GPU is counted, and said once it takes long; with a stand-in for CuPy."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from oneflow.kernels.expressions import cuda_form
from oneflow.kernels.expressions.cuda_form import Spent, cuda_function


def test_a_text_is_compiled_once_for_all_its_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def module(code: str, options: tuple[str, ...]) -> SimpleNamespace:
        made.append(code)
        return SimpleNamespace(get_function=lambda name: f"{name} of {code}")

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(RawModule=module))
    monkeypatch.setattr(cuda_form, "SPENT", Spent())
    cuda_form._module.cache_clear()
    assert cuda_function("text", "f") == "f of text" and cuda_function("text", "g") == "g of text"
    cuda_form._module.cache_clear()
    assert made == ["text"] and cuda_form.SPENT.functions == 2


def test_it_is_said_once_that_compiling_takes_long(caplog: pytest.LogCaptureFixture) -> None:
    spent = Spent()
    with caplog.at_level(logging.WARNING, cuda_form.__name__):
        for _ in range(5):
            spent.add(0.75)
    (said,) = caplog.records
    assert "3 so far, 2.2 s" in said.getMessage() and "CUPY_CACHE_DIR" in said.getMessage()
