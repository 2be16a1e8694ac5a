"""Writes to detached tensors in graphs: values, gradients and the tensors that require them, beside
PyTorch.

A detached tensor has the memory of another one and a history of its own, which begins with the
values written into it or into a view of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import OneFlowError

RNG = np.random.default_rng(0)
X, W, S = (RNG.normal(size=(4, 4)).astype(np.float32) for _ in range(3))
MASK = X > 0
ROWS = np.array([2, 0])

Detach = Callable[[Any], Any]
Write = Callable[[Any, Any, Any], object]

DETACHED: dict[str, Detach] = {
    "detach": lambda h: h.detach(),
    "data": lambda h: h.data,
    "detach of detach": lambda h: h.detach().detach(),
    "data of detach": lambda h: h.detach().data,
    "a view of detach": lambda h: h.detach().t(),
    "a view of data": lambda h: h.data.view(2, 8).view(4, 4),
    "detach of a view": lambda h: h.t().detach(),
    "detach of a view of detach": lambda h: h.detach().t().detach(),
    "a view of detach of a view": lambda h: h.view(-1).detach().view(4, 4),
    "detach of a view of detach of a view": lambda h: h.t().detach().t().detach(),
}


def _set(x: Any, index: Any, value: Any) -> None:
    x[index] = value


WRITES: dict[str, Write] = {
    "a slice": lambda m, d, s: _set(d, slice(1, None), s[1:]),
    "a slice by a number": lambda m, d, s: _set(d, slice(1, None), 2.0),
    "an element": lambda m, d, s: _set(d, (0, 1), s[1, 1]),
    "a strided part": lambda m, d, s: _set(d, (slice(None, None, 2), slice(1, 3)), s[:2, :2]),
    "all": lambda m, d, s: _set(d, Ellipsis, s),
    "a mask": lambda m, d, s: _set(d, m.tensor(MASK), s[0, 0]),
    "rows": lambda m, d, s: _set(d, m.tensor(ROWS), s[:2]),
    "+= on a slice": lambda m, d, s: d[1:].add_(s[1:]),
    "a slice of a slice": lambda m, d, s: d[1:][:, 2:].mul_(s[:3, :2]),
    "a diagonal": lambda m, d, s: d.diagonal().copy_(s[0]),
    "a transposed view": lambda m, d, s: d.t().sub_(s),
    "a flat view": lambda m, d, s: d.reshape(-1)[3:9].mul_(s.reshape(-1)[:6]),
    "select": lambda m, d, s: d.select(0, 1).div_(s[0] + 5.0),
    "data of a slice": lambda m, d, s: d[1:].data.mul_(2.0),
    "a slice of detach": lambda m, d, s: d.detach()[1:].add_(s[1:]),
    "copy_": lambda m, d, s: d.copy_(s),
    "add_": lambda m, d, s: d.add_(s),
    "add_ a number": lambda m, d, s: d.add_(1.0),
    "mul_": lambda m, d, s: d.mul_(s),
    "addcmul_": lambda m, d, s: d.addcmul_(s, s),
    "lerp_": lambda m, d, s: d.lerp_(s, 0.25),
    "fill_": lambda m, d, s: d.fill_(s[0, 0]),
    "zero_": lambda m, d, s: d.zero_(),
    "exp_": lambda m, d, s: d.exp_(),
    "masked_fill_": lambda m, d, s: d.masked_fill_(m.tensor(MASK), s[0, 0]),
    "masked_scatter_": lambda m, d, s: d.masked_scatter_(m.tensor(MASK), s),
    "index_put_": lambda m, d, s: d.index_put_((m.tensor(ROWS),), s[:2]),
    "index_put_ that adds": lambda m, d, s: d.index_put_((m.tensor(ROWS),), s[:2], True),
    "index_add_": lambda m, d, s: d.index_add_(0, m.tensor(ROWS), s[:2]),
    "index_copy_": lambda m, d, s: d.index_copy_(0, m.tensor(ROWS), s[:2]),
    "index_fill_": lambda m, d, s: d.index_fill_(0, m.tensor(ROWS), 3.0),
    "scatter_": lambda m, d, s: d.scatter_(0, m.tensor(ROWS[None]), s[:1, :2]),
    "scatter_add_": lambda m, d, s: d.scatter_add_(0, m.tensor(ROWS[None]), s[:1, :2]),
    "clamp_": lambda m, d, s: d.clamp_(-0.5, 0.5),
    "twice": lambda m, d, s: (_set(d, 0, s[0]), _set(d, slice(2, None), s[2:]), d[1].mul_(s[1])),
    "the source afterwards": lambda m, d, s: _set(d, 0, s[0]),
}


def flags(*tensors: Any) -> list[bool]:
    return [bool(t.requires_grad) for t in tensors]


def written(m: Any, detach: Detach, write: Write, h: Any, s: Any, name: str) -> tuple[Any, Any]:
    """Results of a write, and the tensors that require a gradient then."""
    row = h[0]
    d = detach(h)
    part, turned = d[1:], d.t()
    write(m, d, s)
    if name == "the source afterwards":
        with m.no_grad():
            h[1].add_(1.0)
    said = flags(d, part, turned, h, row, h.detach(), d.detach())
    return (h * 1.0, row * 2.0, d * 3.0, part * part, turned * 0.5), said


def gradients(m: Any, results: Any, sources: Any) -> list[Any]:
    loss = sum((r * (i + 1.0)).sum() for i, r in enumerate(results))
    found = m.autograd.grad(loss, sources, allow_unused=True)
    return [m.zeros_like(x) if g is None else g for x, g in zip(sources, found, strict=True)]


def by_torch(detach: Detach, write: Write, name: str) -> tuple[list[Any], list[bool]]:
    w, s = (torch.tensor(a, requires_grad=True) for a in (W, S))
    results, said = written(torch, detach, write, w * torch.tensor(X), s, name)
    return [r.detach().numpy() for r in (*results, *gradients(torch, results, (w, s)))], said


def in_graph(detach: Detach, write: Write, name: str) -> tuple[list[Any], list[bool]]:
    said: list[bool] = []

    class Program(nn.Graph):
        def build(self, w: Any, s: Any, x: Any) -> Any:
            w, s = w.detach().requires_grad_(), s.detach().requires_grad_()
            results, found = written(flow, detach, write, w * x, s, name)
            said[:] = found
            return [*results, *gradients(flow, results, (w, s))]

    return [r.numpy() for r in Program()(flow.tensor(W), flow.tensor(S), flow.tensor(X))], said


def eagerly(detach: Detach, write: Write, name: str) -> tuple[list[Any], list[bool]]:
    w, s = (flow.tensor(a, requires_grad=True) for a in (W, S))
    results, said = written(flow, detach, write, w * flow.tensor(X), s, name)
    return [r.numpy() for r in (*results, *gradients(flow, results, (w, s)))], said


@pytest.mark.parametrize("detached", DETACHED)
def test_detached_tensors_are_written_as_in_pytorch(detached: str) -> None:
    for name, write in WRITES.items():
        wanted, flags_wanted = by_torch(DETACHED[detached], write, name)
        for run in (eagerly, in_graph):
            got, said = run(DETACHED[detached], write, name)
            assert said == flags_wanted, (name, run.__name__)
            for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
                np.testing.assert_allclose(
                    a, b, 1e-5, 1e-5, err_msg=f"{name}, {run.__name__}, result {i}"
                )


@pytest.mark.parametrize("kind", ["input", "captured", "buffer"])
def test_detached_tensors_from_outside_have_histories_of_their_own(kind: str) -> None:
    """An input of build() has one; memory outside of the graph holds values without a history."""
    captured = flow.tensor(X)
    holder = nn.Module()
    holder.register_buffer("state", flow.tensor(X))

    class Program(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.holder = holder

        def build(self, x: Any, s: Any) -> Any:
            s = s.detach().requires_grad_()
            source = {"input": x, "captured": captured, "buffer": self.holder.state}[kind]
            d = source.detach()
            d[1:] = s[1:]
            assert flags(d, source) == [True, False]
            return source * 1.0, flow.autograd.grad((d * 2.0).sum(), s)[0]

    if kind != "input":
        with pytest.raises(OneFlowError, match="made outside of build"):
            Program()(flow.tensor(X), flow.tensor(S))
        return
    source, grad = Program()(flow.tensor(X), flow.tensor(S))
    np.testing.assert_array_equal(source.numpy(), np.concatenate((X[:1], S[1:])))
    np.testing.assert_array_equal(grad.numpy(), np.repeat([0.0, 2.0], [4, 12]).reshape(4, 4))


def test_the_shape_of_a_detached_tensor_is_changed_in_place() -> None:
    def program(m: Any, x: Any, s: Any) -> Any:
        h = x * 1.0
        d = h.detach()
        part = d[1:]
        d.t_()
        d[:, 0] = s[0]
        part[:, 0] = s[1, :3]
        return h * 1.0, d * 1.0, part * 1.0

    class Program(nn.Graph):
        def build(self, x: Any, s: Any) -> Any:
            return program(flow, x, s)

    wanted = program(torch, torch.tensor(X), torch.tensor(S))
    x, s = flow.tensor(X), flow.tensor(S)
    for got in (program(flow, x, s), Program()(x, s)):
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
