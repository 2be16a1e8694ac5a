"""Settings and questions of scripts that mean nothing here: they are answered truthfully."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import oneflow as flow
from oneflow.core import no_effect
from oneflow.core.no_effect import NoEffectWarning


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_effect, "_said", set())


def set_benchmark() -> None:
    flow.backends.cudnn.benchmark = not flow.backends.cudnn.benchmark


def set_tf32() -> None:
    flow.backends.cuda.matmul.allow_tf32 = not flow.backends.cuda.matmul.allow_tf32


SETTINGS = [
    set_benchmark,
    set_tf32,
    lambda: flow.backends.cudnn.set_reserved_mem_mbytes(100),
    lambda: flow.backends.cudnn.enable_conv_heuristic_search_algo(True),
    lambda: flow.backends.cudnn.enable_fused_normalization_add_relu(True),
    lambda: flow.multiprocessing.set_sharing_strategy("file_system"),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_without_effect_warns_once(setting: Callable[[], None]) -> None:
    with pytest.warns(NoEffectWarning, match="has no effect: "):
        setting()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setting()


def test_a_switch_reads_what_was_set() -> None:
    with pytest.warns(NoEffectWarning):
        flow.backends.cuda.matmul.allow_tf32 = True
    assert flow.backends.cuda.matmul.allow_tf32
    flow.backends.cuda.matmul.allow_tf32 = False
    with pytest.raises(AttributeError):
        flow.backends.cuda.matmul.no_such = True


def test_questions_about_the_installation() -> None:
    config = flow.sysconfig
    assert config.with_cuda() is flow.cuda.is_available()
    assert (config.with_rdma(), config.with_mlir(), config.with_mlir_cuda_codegen()) == (False,) * 3
    assert config.with_enterprise() is False
    assert config.has_rpc_backend_grpc() and config.cmake_build_type() == "Release"
    assert config.get_compile_flags() == config.get_link_flags() == []
    with pytest.raises(flow.core.errors.OneFlowError, match="no C"):
        config.get_include()
    assert not flow.backends.cudnn.is_available() and flow.backends.cudnn.version() is None
    assert not flow.backends.mps.is_available() and not flow.backends.mps.is_built()
    assert flow.backends.cuda.is_built()


@pytest.mark.parametrize(
    ("text", "nbytes"), [("500MB", 500 << 20), ("1.5 gb", 3 << 29), ("64", 64), ("2k", 2048)]
)
def test_sizes_of_budgets(text: str, nbytes: int) -> None:
    assert flow.remat.parse_size(text) == nbytes


def test_a_wrong_size() -> None:
    with pytest.raises(ValueError, match="500MB"):
        flow.remat.parse_size("many")


def test_code_marked_for_a_compiler_stays_as_it_is() -> None:
    def f(x: Any) -> Any:
        return x + 1

    jit = flow.jit
    for mark in (jit.script, jit.ignore, jit.unused, jit.export, jit.script_if_tracing):
        assert mark(f) is f
    assert jit.ignore(drop=True)(f) is f and jit.trace(f, (1,)) is f
    assert not jit.is_scripting() and not jit.is_tracing()
    assert not isinstance(flow.nn.Linear(1, 1), jit.ScriptModule)
