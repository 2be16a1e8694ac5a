"""`vmap` beside PyTorch's: values, gradients, draws, and refusals."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import AutogradError, BatchingError
from oneflow.tensor.batching import mode
from oneflow.tensor.batching.mode import BatchingWarning
from tests.parity.values import compare
from tests.unit.compat.vmap_cases import CASES, normal

F = flow.nn.functional
f = flow.func


@pytest.fixture(autouse=True)
def _as_one_call() -> Iterator[None]:
    """No op may run once for each sample here; PyTorch's warnings are its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", BatchingWarning)
        yield


@pytest.mark.parametrize("name", CASES)
def test_batch_equals_pytorchs(name: str) -> None:
    run = CASES[name]
    compare(run(torch, torch.func), run(flow, flow.func))


# ---- models --------------------------------------------------------------------------------------


def _net(m: Any) -> Any:
    layers = m.nn
    return layers.Sequential(
        layers.Conv2d(1, 4, 3),
        layers.ReLU(),
        layers.MaxPool2d(2),
        layers.GroupNorm(2, 4),
        layers.Flatten(),
        layers.Linear(4 * 5 * 5, 6),
        layers.LayerNorm(6),
    ).double()


def _twins(count: int) -> tuple[list[Any], list[Any]]:
    """Modules of PyTorch and of this library with the same parameters."""
    torch.manual_seed(1)
    theirs, ours = [_net(torch) for _ in range(count)], [_net(flow) for _ in range(count)]
    for source, module in zip(theirs, ours, strict=True):
        given = source.state_dict().items()
        module.load_state_dict({k: flow.from_numpy(v.numpy().copy()) for k, v in given})
    return theirs, ours


def _gradients_of_each_sample(m: Any, model: Any) -> Any:
    x, labels = normal(m, 5, 1, 12, 12), m.arange(5)
    weights = {k: v.detach() for k, v in model.named_parameters()}

    def loss(weights: Any, x: Any, label: Any) -> Any:
        out = m.func.functional_call(model, weights, (x[None],))
        return m.nn.functional.cross_entropy(out, label[None])

    return m.func.vmap(m.func.grad_and_value(loss), (None, 0, 0))(weights, x, labels)


def test_gradients_of_each_sample_equal_pytorchs() -> None:
    theirs, ours = _twins(1)
    compare(_gradients_of_each_sample(torch, theirs[0]), _gradients_of_each_sample(flow, ours[0]))


def _ensemble(m: Any, models: list[Any], batch: int | None) -> Any:
    weights, buffers = m.func.stack_module_state(models)
    x = normal(m, 2, 1, 12, 12) if batch is None else normal(m, 3, 2, 1, 12, 12)

    def call(weights: Any, buffers: Any, x: Any) -> Any:
        return m.func.functional_call(models[0], (weights, buffers), (x,))

    out = m.func.vmap(call, (0, 0, batch))(weights, buffers, x)
    out.square().sum().backward()
    return out, {name: w.grad for name, w in weights.items()}


@pytest.mark.parametrize("batch", [None, 0])
def test_ensemble_and_its_gradients_equal_pytorchs(batch: int | None) -> None:
    theirs, ours = _twins(3)
    compare(_ensemble(torch, theirs, batch), _ensemble(flow, ours, batch))


def test_gradients_of_samples_take_far_less_time_than_a_loop() -> None:
    model = flow.nn.Sequential(flow.nn.Linear(20, 32), flow.nn.Tanh(), flow.nn.Linear(32, 4))
    weights = {k: v.detach() for k, v in model.named_parameters()}
    x, labels = flow.rand(64, 20), flow.randint(0, 4, (64,))

    def loss(weights: Any, x: Any, label: Any) -> Any:
        return F.cross_entropy(f.functional_call(model, weights, (x[None],)), label[None])

    each = f.grad(loss)
    at_once = f.vmap(each, (None, 0, 0))

    def seconds(run: Callable[[], object]) -> float:
        run()
        taken = []
        for _ in range(5):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
        return min(taken)

    def loop() -> list[Any]:
        return [each(weights, a, b) for a, b in zip(x, labels, strict=True)]

    for row, one in zip(loop(), at_once(weights, x, labels)["0.weight"], strict=True):
        np.testing.assert_allclose(one.numpy(), row["0.weight"].numpy(), rtol=1e-4, atol=1e-6)
    assert seconds(loop) > 5 * seconds(lambda: at_once(weights, x, labels))


def test_graphs_and_autocast_compute_batches() -> None:
    w, x = flow.rand(3, 6), flow.rand(4, 6)

    def function(x: Any, w: Any) -> Any:
        return f.vmap(lambda a: (F.linear(a, w).relu() * a[0]).sum())(x)

    class Batches(flow.nn.Graph):
        def build(self, x: Any, w: Any) -> Any:
            return function(x, w)

    want = (F.linear(x, w).relu() * x[:, :1]).sum(1)
    np.testing.assert_allclose(Batches()(x, w).numpy(), want.numpy(), rtol=1e-5)
    with flow.autocast("cpu", dtype=flow.bfloat16):
        low = f.vmap(lambda a: F.linear(a, w))(x)
        also = f.vmap(lambda a: _lowered(a, w))(x)
    assert low.dtype is also.dtype is flow.bfloat16
    np.testing.assert_allclose(low.float().numpy(), F.linear(x, w).numpy(), rtol=0.02)


def _lowered(a: Any, w: Any) -> Any:
    with flow.autocast("cpu", dtype=flow.bfloat16):
        return F.linear(a, w)


# ---- draws ---------------------------------------------------------------------------------------

DRAWS: dict[str, Callable[[Any], Any]] = {
    "randn": lambda a: flow.randn(6) + a,
    "of a sample's shape": lambda a: flow.rand_like(a),
    "dropout": lambda a: F.dropout(a, 0.5),
    "dropout of what is shared": lambda a: F.dropout(flow.ones(40), 0.5),
    "bernoulli": lambda a: flow.bernoulli(a * 0.5),
    "in place": lambda a: a.clone().normal_(),
    "into what is shared": lambda a: flow.empty(6).uniform_(),
    "an order": lambda a: flow.randperm(40),
    "gradient of dropout": lambda a: f.grad(lambda x: F.dropout(x, 0.5).sum())(a),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_as_the_call_wants_them(name: str) -> None:
    x, draw = flow.ones(4, 6), DRAWS[name]
    different = f.vmap(draw, randomness="different")(x).numpy()
    assert len(np.unique(different, axis=0)) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BatchingWarning)
        same = f.vmap(draw, randomness="same")(x).numpy()
    assert len(np.unique(same, axis=0)) == 1 and len(np.unique(same)) > 1
    with pytest.raises(BatchingError, match="randomness error mode"):
        f.vmap(draw)(x)


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_dropout_drops_where_its_gradient_is_zero(randomness: str) -> None:
    x = flow.rand(5, 30) + 1
    slope, (_, out) = f.vmap(f.grad_and_value(_dropped, has_aux=True), randomness=randomness)(x)
    assert (out.numpy() == 0).any()
    np.testing.assert_array_equal(out.numpy() == 0, slope.numpy() == 0)
    np.testing.assert_allclose(out.numpy(), (x * slope).numpy(), rtol=1e-5)


def _dropped(a: Any) -> Any:
    out = F.dropout(a, 0.3)
    return out.sum(), out


# ---- refusals ------------------------------------------------------------------------------------

READS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "condition": (lambda a: a if a.sum() > 0 else -a, r"vmap: a condition \(.*\)"),
    "item": (lambda a: a * a.sum().item(), r"vmap: item\(\)"),
    "number": (lambda a: a * float(a.sum()), r"vmap: float\(x\)"),
    "range": (lambda a: [a for _ in range(int(a.sum()))], r"vmap: int\(x\)"),
    "list": (lambda a: flow.tensor(a.tolist()), r"vmap: tolist\(\)"),
    "array": (lambda a: a.numpy(), r"vmap: numpy\(\)"),
    "nonzero": (lambda a: a.nonzero(), r"vmap: nonzero\(\)"),
    "mask": (lambda a: a[a > 0], r"vmap: x\[mask\]"),
}


@pytest.mark.parametrize("name", READS)
def test_values_of_samples_cannot_be_read(name: str) -> None:
    read, words = READS[name]
    with pytest.raises(BatchingError, match=f"^{words} needs the values of .* 4 samples"):
        f.vmap(read)(flow.ones(4, 3))


def test_tensors_of_samples_stay_inside() -> None:
    kept = []
    f.vmap(lambda a: (kept.append(a * 2), a)[1])(flow.ones(4, 3))
    assert "samples=4" in repr(kept[0])
    with pytest.raises(BatchingError, match="inside vmap and has no data outside"):
        kept[0] + 1


def test_what_all_samples_share_is_not_overwritten_by_one() -> None:
    x, outside = flow.ones(4, 3), flow.zeros(3)
    with pytest.raises(BatchingError, match="one tensor for all 4 samples"):
        f.vmap(lambda a: outside.add_(a))(x)
    f.vmap(lambda a: (outside.add_(1), a)[1])(x)
    assert outside.tolist() == [1, 1, 1]
    made = f.vmap(lambda a: flow.zeros(3).add_(a))(x)  # which PyTorch refuses
    assert made.tolist() == x.tolist()


def test_backward_inside_is_refused() -> None:
    w = flow.ones(3, requires_grad=True)
    with pytest.raises(AutogradError, match=r"backward\(\) inside adds to \.grad"):
        f.vmap(lambda a: (a * w).sum().backward())(flow.ones(4, 3))
    assert w.grad is None


def test_gradients_flow_to_captured_tensors() -> None:
    w = flow.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = flow.arange(12.0).reshape(4, 3)
    f.vmap(lambda a: (a * w).sum() ** 2)(x).sum().backward()
    want = (2 * (x * w).sum(1, keepdim=True) * x).sum(0)
    np.testing.assert_allclose(w.grad.numpy(), want.detach().numpy())
    slope = f.grad(lambda a: (a * w).sum() ** 2)(x[1])
    assert slope.requires_grad
    own = f.vmap(lambda a: flow.autograd.grad((a * w).sum() ** 2, w)[0])(x)
    np.testing.assert_allclose(own.sum(0).detach().numpy(), w.grad.numpy())


MISTAKES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "no tensors": (lambda m, x: m.func.vmap(lambda: 1)(), "got no inputs|no inputs"),
    "no batch": (lambda m, x: m.func.vmap(lambda a: a, None)(x), "in_dims"),
    "all shared": (lambda m, x: m.func.vmap(lambda a: a, (None,))(x), "at least one"),
    "a number": (lambda m, x: m.func.vmap(lambda a, b: a)(x, 2.0), "non-Tensor"),
    "a dim that is not there": (lambda m, x: m.func.vmap(lambda a: a, 3)(x), "in_dim=3"),
    "another tree": (lambda m, x: m.func.vmap(lambda a: a, ((0, 0),))(x), "not compatible"),
    "sizes": (lambda m, x: m.func.vmap(lambda a, b: a)(x, x[:1]), "same size|mapped dimension"),
    "a result": (lambda m, x: m.func.vmap(lambda a: 3.0)(x), "must only return Tensors"),
    "draws": (lambda m, x: m.func.vmap(lambda a: a, randomness="no")(x), "'different', or 'same'"),
    "chunks": (lambda m, x: m.func.vmap(lambda a: a, chunk_size=0)(x), "chunk_size"),
    "ends": (lambda m, x: m.func.vmap(lambda a: (a, a), out_dims=(0, 0, 0))(x), "out_dims"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_as_pytorch_does(name: str) -> None:
    run, words = MISTAKES[name]
    with pytest.raises((ValueError, RuntimeError), match=words):
        run(torch, torch.ones(2, 3))
    with pytest.raises((ValueError, RuntimeError, TypeError), match=words):
        run(flow, flow.ones(2, 3))


def test_an_op_without_a_rule_runs_for_each_sample_and_says_so() -> None:
    rnn = flow.nn.LSTM(3, 2)
    weights, _ = f.stack_module_state([rnn, flow.nn.LSTM(3, 2)])
    x = flow.rand(5, 1, 3)

    def call(weights: Any) -> Any:
        return f.functional_call(rnn, weights, (x,))[0]

    mode._looped.discard("recurrent")
    with pytest.warns(BatchingWarning, match="recurrent runs once for each sample"):
        out = f.vmap(call)(weights)
    np.testing.assert_allclose(out[0].detach().numpy(), rnn(x)[0].detach().numpy(), rtol=1e-6)
