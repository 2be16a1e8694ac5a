"""Gradients of gradients: every op of the registry against differences of its first gradient, and
functions as users call them against torch, in float64.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.dispatch import call
from oneflow.core.errors import AutogradError
from oneflow.core.op import find_op
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, Sbp, Split
from oneflow.tensor.tensor import Tensor, wrap
from tests.parity.values import compare, to_flow
from tests.unit.ops.sample import Sample, named
from tests.unit.ops.samples import SAMPLES

WITHOUT = {"ctc_loss"}
"""Ops without a second derivative, here and in PyTorch."""
STEP = 1e-6
Array = np.ndarray[Any, Any]


def _leaves(sample: Sample) -> list[int]:
    """Inputs that the first gradient is taken by."""
    wanted = range(len(sample.inputs)) if sample.wrt is None else sample.wrt
    return [i for i in wanted if sample.inputs[i].dtype == np.float64]


def _is_tried(sample: Sample) -> bool:
    op = find_op(sample.op)
    return op.has_gradient and not op.mutates and bool(_leaves(sample))


class Double:
    """The first gradients of one sample, as a function of its inputs and output gradients."""

    def __init__(self, sample: Sample) -> None:
        self.sample, self.at = sample, _leaves(sample)
        self.rng = np.random.default_rng(0)
        compared = sample.compared
        outs = self._outputs([wrap(np.array(x)) for x in sample.inputs])
        self.d_outs: list[Array | None] = [
            self.rng.normal(size=tuple(y.shape))
            if y.dtype is flow.float64 and (compared is None or i in compared)
            else None
            for i, y in enumerate(outs)
        ]

    def _outputs(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        made = call(find_op(self.sample.op), *inputs, **self.sample.attrs)
        return made if isinstance(made, tuple) else (made,)

    def point(self) -> list[Array]:
        """Differentiated inputs, then output gradients."""
        return [self.sample.inputs[i] for i in self.at] + [d for d in self.d_outs if d is not None]

    def gradients(self, point: list[Array], create_graph: bool) -> tuple[list[Tensor], Any]:
        """The leaves at a point, and the first gradients there."""
        leaves = [wrap(np.array(x), requires_grad=True) for x in point]
        inputs = [wrap(np.array(x)) for x in self.sample.inputs]
        for i, leaf in zip(self.at, leaves, strict=False):
            inputs[i] = leaf
        given = iter(leaves[len(self.at) :])
        d_outs = [None if d is None else next(given) for d in self.d_outs]
        pairs = [
            (y, d)
            for y, d in zip(self._outputs(inputs), d_outs, strict=True)
            if d is not None and y.requires_grad
        ]
        found: Any = (None,) * len(self.at)
        if pairs:
            roots, grads = zip(*pairs, strict=True)
            mine = leaves[: len(self.at)]
            found = flow.autograd.grad(
                list(roots), mine, list(grads), create_graph=create_graph, allow_unused=True
            )
        return leaves, found

    def check(self) -> None:
        point = self.point()
        leaves, firsts = self.gradients(point, True)
        weights = [None if g is None else self.rng.normal(size=tuple(g.shape)) for g in firsts]
        seconds: Any = (None,) * len(leaves)
        terms = [
            (g * wrap(w)).sum()
            for g, w in zip(firsts, weights, strict=True)
            if g is not None and g.requires_grad
        ]
        if terms:
            seconds = flow.autograd.grad(sum(terms), leaves, allow_unused=True)
        ways = [self.rng.normal(size=x.shape) for x in point]
        pairs = zip(seconds, ways, strict=True)
        got = sum(float((g.numpy() * way).sum()) for g, way in pairs if g is not None)

        def total(step: float) -> float:
            moved = [x + step * way for x, way in zip(point, ways, strict=True)]
            grads = zip(self.gradients(moved, False)[1], weights, strict=True)
            return sum(float((g.numpy() * w).sum()) for g, w in grads if g is not None)

        wanted = (total(STEP) - total(-STEP)) / (2 * STEP)
        assert abs(got - wanted) <= 1e-5 * (1 + abs(wanted)), f"{got} instead of {wanted}"


@pytest.mark.parametrize("sample", named([s for s in SAMPLES if _is_tried(s)]))
def test_gradients_of_every_op_have_gradients(sample: Sample) -> None:
    if sample.op in WITHOUT:
        with pytest.raises(AutogradError, match=f"no second derivative of {sample.op}: "):
            Double(sample).check()
    else:
        Double(sample).check()


# ---- functions against torch ---------------------------------------------------------------------

LABELS = torch.tensor([1, 0, 3])
IMAGE = (1, 2, 5, 5)
Shape = tuple[int, ...]


def _entropy(F: Any, x: Any) -> Any:
    labels = LABELS if isinstance(x, torch.Tensor) else to_flow(LABELS)
    return F.cross_entropy(x, labels, label_smoothing=0.1)


FUNCTIONS: dict[str, tuple[Callable[..., Any], list[Shape]]] = {
    "batch norm": (lambda F, x, *wb: F.batch_norm(x, None, None, *wb, True),
                   [(3, 2, 4), (2,), (2,)]),
    "group norm": (lambda F, x, *wb: F.group_norm(x, 2, *wb), [(2, 4, 3), (4,), (4,)]),
    "instance norm": (lambda F, x: F.instance_norm(x), [(2, 3, 5)]),
    "layer norm": (lambda F, x, *wb: F.layer_norm(x, (4,), *wb), [(3, 4), (4,), (4,)]),
    "RMS norm": (lambda F, x, w: F.rms_norm(x, (4,), w, 1e-5), [(3, 4), (4,)]),
    "cross entropy": (_entropy, [(3, 4)]),
    "log softmax": (lambda F, x: F.log_softmax(x, 0), [(3, 4)]),
    "attention": (lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                  [(1, 3, 4)] * 3),
    "convolution": (lambda F, x, w: F.conv2d(x, w, stride=2, padding=1), [IMAGE, (3, 2, 3, 3)]),
    "transposed": (lambda F, x, w: F.conv_transpose2d(x, w, stride=2), [IMAGE, (2, 2, 2, 2)]),
    "max pool": (lambda F, x: F.max_pool2d(x, 3, 2, 1), [IMAGE]),
    "average pool": (lambda F, x: F.avg_pool2d(x, 3, 2, 1), [IMAGE]),
    "adaptive pool": (lambda F, x: F.adaptive_avg_pool2d(x, (2, 3)), [IMAGE]),
    "linear": (lambda F, x: F.interpolate(x, scale_factor=2, mode="bilinear"), [IMAGE]),
    "cubic": (lambda F, x: F.interpolate(x, size=(5, 4), mode="bicubic"), [IMAGE]),
    "unfold": (lambda F, x: F.unfold(x, 2), [IMAGE]),
    "smooth L1": (lambda F, x, y: F.smooth_l1_loss(x, y), [(6,), (6,)]),
    "huber": (lambda F, x, y: F.huber_loss(x, y), [(6,), (6,)]),
    "BCE": (lambda F, x: F.binary_cross_entropy_with_logits(x, x.sigmoid().detach()), [(6,)]),
    "KL": (lambda F, x, y: F.kl_div(x, y, log_target=True, reduction="sum"), [(6,), (6,)]),
    "cosine": (lambda F, x, y: F.cosine_similarity(x, y), [(3, 4), (3, 4)]),
    "normalize": (lambda F, x: F.normalize(x), [(3, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_gradients_agree_with_torch(name: str, rng: np.random.Generator) -> None:
    function, shapes = FUNCTIONS[name]
    arrays = [rng.normal(size=shape) for shape in shapes]
    found = []
    libraries: tuple[Any, ...] = (torch, flow)
    for lib in libraries:
        leaves = [lib.tensor(a).requires_grad_() for a in arrays]
        out = function(lib.nn.functional, *leaves)
        firsts = lib.autograd.grad(out.sin().sum(), leaves, create_graph=True)
        total = sum((g * g * g).sum() + g.sum() for g in firsts)
        found.append(lib.autograd.grad(total, leaves, allow_unused=True))
    for theirs, ours in zip(*found, strict=True):
        compare(theirs, ours, where="second gradient")


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "LSTMCell", "BatchNorm2d", "Bilinear"])
def test_layers_learn_to_have_small_gradients(kind: str) -> None:
    """A penalty on the gradient by the input, as WGAN-GP has it, reaches all parameters."""
    sizes = {"BatchNorm2d": (2,), "Bilinear": (3, 3, 2)}.get(kind, (3, 4))
    shape = {"BatchNorm2d": (3, 2, 2, 2), "LSTMCell": (2, 3), "Bilinear": (2, 3)}.get(
        kind, (5, 2, 3)
    )
    theirs = getattr(torch.nn, kind)(*sizes).double()
    ours = getattr(flow.nn, kind)(*sizes).double()
    ours.load_state_dict(to_flow(theirs.state_dict()))
    x = torch.tensor(np.random.default_rng(3).normal(size=shape))
    cases: list[Any] = [(torch, theirs, x), (flow, ours, to_flow(x))]
    for lib, layer, value in cases:
        value.requires_grad_()
        out: Any = layer(*(value,) * (2 if kind == "Bilinear" else 1))
        while isinstance(out, tuple):
            out = out[0]
        (first,) = lib.autograd.grad(out.sin().sum(), value, create_graph=True)
        (first.square().sum() - 1).square().backward()
    for (name, a), b in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        if a.grad is not None:
            compare(a.grad, b.grad, where=name)


class Penalty(flow.nn.Graph):
    """The square of the gradient by the input, as an output and as the loss."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

    def build(self, x: Any) -> Any:
        out = self.model(x.requires_grad_())
        (first,) = flow.autograd.grad(out.sin().sum(), x, create_graph=True)
        loss = first.square().sum()
        loss.backward()
        return loss


def test_second_derivatives_in_a_graph(rng: np.random.Generator) -> None:
    flow.manual_seed(0)
    parts = [
        flow.nn.BatchNorm2d(2),
        flow.nn.MaxPool2d(2),
        flow.nn.ReflectionPad2d(1),
        flow.nn.AvgPool2d(2),
        flow.nn.LayerNorm(2),
    ]
    model = flow.nn.Sequential(*parts).double()
    again = copy.deepcopy(model)
    graph, optimizer = Penalty(model), flow.optim.SGD(again.parameters(), lr=0.1)
    for _ in range(2):
        array = rng.normal(size=(3, 2, 4, 4))
        found = graph(flow.tensor(array))
        optimizer.zero_grad()
        wanted = Penalty.build(mock_of(again), flow.tensor(array))
        optimizer.step()
        np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-9)


def mock_of(model: Any) -> Any:
    """The attributes that `build` reads of its graph."""
    return types.SimpleNamespace(model=model)


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "a row": lambda x, y: x.__setitem__(1, y[0]),
    "a slice": lambda x, y: x.__setitem__((slice(None), slice(0, 2)), y[:, 1:] * y[:, :2]),
    "a view of a view": lambda x, y: x.t()[1:].select(0, 1).copy_(y[:, 2]),
    "in place": lambda x, y: x[0].mul_(y[1]),
}


@pytest.mark.parametrize("name", WRITES)
def test_second_derivatives_through_what_is_written_into_views(
    name: str, rng: np.random.Generator
) -> None:
    arrays, found = [rng.normal(size=(3, 3)) for _ in range(2)], []
    libraries: tuple[Any, ...] = (torch, flow)
    for lib in libraries:
        a, b = (lib.tensor(array).requires_grad_() for array in arrays)
        x = a * b
        WRITES[name](x, b)
        firsts = lib.autograd.grad(x.sin().sum(), (a, b), create_graph=True)
        total = sum((g * g * g).sum() for g in firsts)
        found.append([*firsts, *lib.autograd.grad(total, (a, b))])
    for theirs, ours in zip(*found, strict=True):
        compare(theirs.detach(), ours.detach(), where=name)


def test_third_derivatives() -> None:
    x = flow.tensor([0.3, -0.7, 1.1], dtype=flow.float64, requires_grad=True)
    y = torch.tensor(x.tolist(), dtype=torch.float64, requires_grad=True)
    cases: list[Any] = [(flow, x), (torch, y)]
    for lib, leaf in cases:
        value = lib.nn.functional.log_softmax(leaf, 0)[0].sin()
        for _ in range(3):
            (value,) = lib.autograd.grad(value, leaf, create_graph=True)
            value = (value * value).sum()
        value.backward()
    compare(y.grad, x.grad, where="after three derivatives")


def test_a_product_with_zeros_has_second_derivatives() -> None:
    values = [2.0, 0.0, 3.0]
    x = flow.tensor(values, dtype=flow.float64, requires_grad=True)
    y = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    compare(
        torch.autograd.functional.hessian(torch.prod, y),
        flow.autograd.functional.hessian(flow.prod, x),
        where="hessian",
    )


# ---- piecewise linear functions: their second derivative is 0, and there -------------------------

_PADS = {f"pad {m}": m for m in ("reflect", "replicate", "circular", "constant")}
_POOLS = [n for n in dir(torch.nn.functional) if "_pool" in n and "indices" not in n]
_POOLS = [n for n in _POOLS if hasattr(flow.nn.functional, n) and n[0] not in "_b"]


def _piecewise(lib: Any, name: str, x: Any) -> Any:
    F = lib.nn.functional
    if name in _PADS:
        return F.pad(x, (1, 2), mode=_PADS[name])
    if name in ("nll_loss", "area"):
        labels = lib.tensor([[1, 0, 1, 1]])
        return F.nll_loss(x, labels) if name == "nll_loss" else F.interpolate(x, 2, mode="area")
    ndim = x.ndim - 2
    if "unpool" in name:
        return getattr(F, name)(*getattr(F, f"max_pool{ndim}d")(x, 2, return_indices=True), 2)
    if "fractional" in name:
        samples = lib.full((1, 2, ndim), 0.3, dtype=x.dtype)
        return getattr(F, name)(x, 2, output_size=(2,) * ndim, _random_samples=samples)
    return getattr(F, name)(x, *((2, 2) if name.startswith("lp") else (2,)))


@pytest.mark.parametrize("name", [*_POOLS, *_PADS, "nll_loss", "area"])
def test_second_derivatives_of_piecewise_linear_functions(
    name: str, rng: np.random.Generator
) -> None:
    ndim = next((n for n in (2, 3) if f"{n}d" in name), 1)
    array, found = rng.normal(size=(1, 2, *(4,) * ndim)), []
    libraries: tuple[Any, ...] = (torch, flow)
    for lib in libraries:
        x = lib.tensor(array).requires_grad_()
        y = _piecewise(lib, name, x)
        d = lib.ones_like(y).requires_grad_()
        (first,) = lib.autograd.grad(y, x, d, create_graph=True)
        seconds = lib.autograd.grad((first * first).sum(), (x, d), allow_unused=True)
        found.append([first.detach(), *seconds])
    for theirs, ours in zip(*found, strict=True):
        assert (theirs is None) == (ours is None)
        if theirs is not None:
            compare(theirs, ours, where=name)


def first_and_second(y: Any, x: Any, weight: float) -> tuple[Any, Any]:
    first: Any = flow.autograd.grad(y.sum(), x, create_graph=True)[0]
    return first, flow.autograd.grad((first * weight).sum(), x)[0]


def test_infinite_inputs_do_not_reach_gradients_of_pools() -> None:
    x = flow.tensor([[[np.inf, -np.inf, np.nan, 1.0]]], requires_grad=True)
    y = flow.nn.functional.avg_pool1d(x, 2)
    first, second = first_and_second(y, x, np.inf)
    assert first.tolist() == [[[0.5] * 4]]
    assert second.tolist() == [[[0.0] * 4]]


@pytest.mark.parametrize("sbp", [BROADCAST, Split(0), Split(1)])
def test_second_derivatives_of_pools_of_global_tensors(sbp: Sbp) -> None:
    x = flow.ones(2, 2, 4, 4).to_global(Placement("cpu", [0]), sbp).requires_grad_()
    y = flow.nn.functional.pad(flow.nn.functional.max_pool2d(x, 2), (1, 1), mode="reflect")
    _, second = first_and_second(y, x, 1.0)
    np.testing.assert_array_equal(second.numpy(), np.zeros((2, 2, 4, 4)))
