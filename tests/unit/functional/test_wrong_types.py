"""Arguments of wrong types are named, in errors of the class of PyTorch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import oneflow as flow
from oneflow.core import no_effect
from oneflow.core.errors import CallError
from oneflow.core.no_effect import NoEffectWarning
from oneflow.functional.argument_errors import explain

Call = Callable[[Any], Any]

CALLS: dict[str, tuple[Call, str]] = {
    "exp, text": (
        lambda m: m.exp("x"),
        "exp(): argument 'input' (position 1) must be Tensor, not str",
    ),
    "relu, list": (lambda m: m.relu([1.0]), "relu(): argument 'input' (position 1) must be Tensor"),
    "bmm, none": (
        lambda m: m.bmm(None, m.ones(1, 2, 2)),
        "bmm(): argument 'input' (position 1) must be Tensor, not NoneType",
    ),
    "mm, number": (
        lambda m: m.mm(m.ones(2, 2), 3),
        "mm(): argument 'mat2' (position 2) must be Tensor",
    ),
    "sum, dim": (
        lambda m: m.sum(m.ones(2), "a"),
        "sum(): argument 'dim' (position 2) must be int or",
    ),
    "sum, text": (
        lambda m: m.sum("x"),
        "sum(): argument 'input' (position 1) must be Tensor, not str",
    ),
    "softmax, dim": (
        lambda m: m.softmax(m.ones(2), "a"),
        "argument 'dim' (position 2) must be int",
    ),
    "softmax, float": (lambda m: m.softmax(m.ones(2), 0.5), "must be int, not float"),
    "argmax, dim": (lambda m: m.argmax(m.ones(2), dim="a"), "argmax(): argument 'dim'"),
    "reshape, list": (lambda m: m.reshape([1], (1,)), "reshape(): argument 'input' (position 1)"),
    "transpose": (lambda m: m.transpose(m.ones(2, 2), "a", 0), "transpose(): argument"),
    "unsqueeze": (lambda m: m.unsqueeze(m.ones(2), "a"), "argument 'dim' (position 2) must be int"),
    "cat, number": (lambda m: m.cat(3), "cat(): argument 'tensors' (position 1) must be tuple of"),
    "chunk": (
        lambda m: m.chunk(m.ones(4), "a"),
        "argument 'chunks' (position 2) must be int, not str",
    ),
    "gather, list": (
        lambda m: m.gather(m.ones(2), 0, [0]),
        "argument 'index' (position 3) must be",
    ),
    "topk": (
        lambda m: m.topk(m.ones(4), "a"),
        "topk(): argument 'k' (position 2) must be int, not",
    ),
    "clamp": (lambda m: m.clamp(m.ones(2), "a"), "clamp(): argument 'min' (position 2) must be"),
    "tril": (
        lambda m: m.tril(m.ones(2, 2), "a"),
        "tril(): argument 'diagonal' (position 2) must be",
    ),
    "full": (lambda m: m.full((2,), "a"), "full(): argument"),
    "linear, list": (
        lambda m: m.nn.functional.linear(m.ones(2, 2), [1]),
        "linear(): argument 'weight' (position 2) must be Tensor, not list",
    ),
    "conv2d, stride": (
        lambda m: m.nn.functional.conv2d(m.ones(1, 1, 4, 4), m.ones(1, 1, 2, 2), stride="a"),
        "conv2d(): argument 'stride' (position 4) must be int or tuple of ints, not str",
    ),
    "max_pool2d": (
        lambda m: m.nn.functional.max_pool2d(m.ones(1, 1, 4, 4), "a"),
        "max_pool2d(): argument 'kernel_size' (position 2) must be int or tuple of ints, not str",
    ),
    "embedding": (
        lambda m: m.nn.functional.embedding([1], m.ones(2, 2)),
        "embedding(): argument 'input' (position 1) must be Tensor, not list",
    ),
    "cross_entropy": (
        lambda m: m.nn.functional.cross_entropy(m.ones(2, 2), [1, 0]),
        "cross_entropy(): argument 'target' (position 2) must be Tensor, not list",
    ),
    "leaky_relu": (
        lambda m: m.nn.functional.leaky_relu(m.ones(2), "a"),
        "leaky_relu(): argument 'negative_slope' (position 2) must be",
    ),
    "Linear": (
        lambda m: m.nn.Linear(2, 2)([1.0, 2.0]),
        "linear(): argument 'input' (position 1) must be Tensor, not list",
    ),
    "LayerNorm": (lambda m: m.nn.LayerNorm(2)([1.0, 2.0]), "layer_norm(): argument 'input'"),
    "missing": (lambda m: m.unsqueeze(m.ones(2)), "missing 1 required positional argument"),
    "too many": (lambda m: m.exp(m.ones(2), 1, 2), "exp() takes"),
    "unknown": (lambda m: m.exp(m.ones(2), foo=2), "unexpected keyword argument 'foo'"),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_argument_is_named(name: str) -> None:
    call, words = CALLS[name]
    with pytest.raises(TypeError):
        call(torch)
    with pytest.raises(TypeError) as caught:
        call(flow)
    assert words in str(caught.value)


def test_errors_of_right_types_are_left_alone() -> None:
    def wrong(input: flow.Tensor, dim: int | None = None, *, many: Any = 3) -> None:
        raise AttributeError("its own")

    x = flow.ones(2)
    for args, keywords in (((x,), {}), ((x, 1), {}), ((x, None), {"many": "a"}), ((), {})):
        explain(wrong, args, keywords, AttributeError())
    explain(wrong, ("a",), {}, CallError("said already"))
    with pytest.raises(CallError, match=r"argument 'dim' .position 2. must be int, not str"):
        explain(wrong, (x, "a"), {}, AttributeError())


@pytest.mark.parametrize("name", ["hypot", "nextafter", "logaddexp2", "quantile"])
def test_integers_are_refused_where_torch_refuses_them(name: str) -> None:
    second: Any = (lambda m, x: 0.5) if name == "quantile" else (lambda m, x: x)
    for m in (torch, flow):
        x = m.tensor([1, 2, 3])
        with pytest.raises(RuntimeError):
            getattr(m, name)(x, second(m, x))


def test_errors_of_files_are_passed_on(tmp_path: Path) -> None:
    x = {"a": flow.ones(1)}
    with pytest.raises(FileNotFoundError, match=r"Parent directory .* does not exist"):
        flow.save(x, tmp_path / "none" / "file")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        flow.save(x, tmp_path / "file" / "file")
    with pytest.raises(OSError, match="name too long"):
        flow.save(x, tmp_path / ("x" * 300))
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"):
        flow.save(x, tmp_path / "circle")


def test_warnings_that_are_errors_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_effect, "_said", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NoEffectWarning, match="no other algorithms"):
            flow.use_deterministic_algorithms(False)
