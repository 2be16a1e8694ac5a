"""nn.utils beside PyTorch: packed sequences, pruning, weight norm, first values left out."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")  # PyTorch's own

LENGTHS = [2, 5, 1, 5]


def sequences(m: Any) -> Any:
    x = np.random.default_rng(3).standard_normal((5, 4, 3)).astype(np.float32)
    return m.from_numpy(x).requires_grad_()


def copied(ours: Any, theirs: Any) -> None:
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        a.data = flow.from_numpy(b.detach().numpy().copy())


def close(a: Any, b: Any, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), tolerance, tolerance)


@pytest.mark.parametrize("enforced", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_take_packed_sequences(kind: str, enforced: bool) -> None:
    lengths = sorted(LENGTHS, reverse=True) if enforced else LENGTHS
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(3, 4, num_layers=2, bidirectional=True)
    ours = getattr(flow.nn, kind)(3, 4, num_layers=2, bidirectional=True)
    copied(ours, theirs)
    found = []
    for m, net in ((flow, ours), (torch, theirs)):
        x, start = sequences(m), m.ones(4, 4, 4) * 0.1
        rnn = importlib.import_module(f"{m.__name__}.nn.utils.rnn")
        packed = rnn.pack_padded_sequence(x, lengths, enforce_sorted=enforced)
        out, state = net(packed, (start, start) if kind == "LSTM" else start)
        padded, sizes = rnn.pad_packed_sequence(out, total_length=6, padding_value=-1.0)
        last = state if kind == "LSTM" else (state,)
        ((padded * padded).sum() + sum((s * s * s).sum() for s in last)).backward()
        grads = [p.grad for p in net.parameters()]
        found.append(
            [packed.data, packed.batch_sizes, out.data, padded, sizes, *last, x.grad, *grads]
        )
    for a, b in zip(*found, strict=True):
        close(a, b, 2e-5)


def test_padding_and_packing_come_back() -> None:
    for m in (flow, torch):
        rnn = importlib.import_module(f"{m.__name__}.nn.utils.rnn")
        parts = [m.ones(n, 2) * n for n in (2, 3, 1)]
        padded = rnn.pad_sequence(parts, batch_first=True, padding_value=9.0)
        assert padded.tolist()[2] == [[1, 1], [9, 9], [9, 9]]
        back = rnn.unpad_sequence(padded, m.tensor([2, 3, 1]), batch_first=True)
        assert [p.tolist() for p in back] == [p.tolist() for p in parts]
        packed = rnn.pack_sequence(parts, enforce_sorted=False)
        assert [p.tolist() for p in rnn.unpack_sequence(packed)] == [p.tolist() for p in parts]
        assert rnn.invert_permutation(m.tensor([2, 0, 1])).tolist() == [1, 2, 0]
        with pytest.raises(RuntimeError, match="decreasing order"):
            rnn.pack_sequence(parts)
        with pytest.raises(ValueError, match="total_length"):
            rnn.pad_packed_sequence(packed, total_length=2)


def pruned(m: Any, how: Callable[[Any, Any], object]) -> Any:
    module = m.nn.Linear(6, 4)
    weight = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)
    module.weight.data, module.bias.data = m.from_numpy(weight), m.zeros(4)
    how(importlib.import_module(f"{m.__name__}.nn.utils.prune"), module)
    return module


WAYS: list[Callable[[Any, Any], object]] = [
    lambda p, m: p.l1_unstructured(m, "weight", 5),
    lambda p, m: p.l1_unstructured(m, "weight", 0.3),
    lambda p, m: p.ln_structured(m, "weight", 2, n=2, dim=1),
    lambda p, m: p.ln_structured(m, "weight", 0.5, n=1, dim=0),
    lambda p, m: [p.l1_unstructured(m, "weight", 4), p.l1_unstructured(m, "weight", 3)],
    lambda p, m: [p.ln_structured(m, "weight", 1, 2, 0), p.ln_structured(m, "weight", 2, 2, 1)],
    lambda p, m: p.identity(m, "weight"),
    lambda p, m: p.global_unstructured([(m, "weight")], p.L1Unstructured, amount=7),
]


@pytest.mark.parametrize("how", WAYS)
def test_pruning_holds_the_same_elements_at_zero(how: Callable[[Any, Any], object]) -> None:
    ours, theirs = pruned(flow, how), pruned(torch, how)
    close(ours.weight_mask, theirs.weight_mask)
    close(ours.weight, theirs.weight)
    assert sorted(ours.state_dict()) == sorted(theirs.state_dict())
    x = np.ones((2, 6), np.float32)
    out, wanted = ours(flow.from_numpy(x)), theirs(torch.from_numpy(x))
    close(out, wanted)
    out.sum().backward()
    wanted.sum().backward()
    close(ours.weight_orig.grad, theirs.weight_orig.grad)
    prune = flow.nn.utils.prune
    assert prune.is_pruned(ours)
    prune.remove(ours, "weight")
    assert not prune.is_pruned(ours) and "weight" in dict(ours.named_parameters())
    close(ours.weight, theirs.weight)


def test_pruning_by_chance_prunes_the_asked_amount() -> None:
    prune = flow.nn.utils.prune
    module = prune.random_unstructured(flow.nn.Linear(6, 4), "weight", 0.25)
    assert float(module.weight_mask.sum()) == 18
    module = prune.random_structured(flow.nn.Linear(6, 4), "weight", 2, dim=1)
    assert sorted(module.weight_mask.sum(0).tolist()) == [0, 0, 4, 4, 4, 4]
    module = prune.custom_from_mask(flow.nn.Linear(2, 1), "weight", flow.tensor([[0.0, 1.0]]))
    assert float(module.weight[0, 0]) == 0
    with pytest.raises(ValueError, match="amount=99"):
        prune.l1_unstructured(flow.nn.Linear(2, 1), "weight", 99)
    with pytest.raises(ValueError, match="has to be pruned"):
        prune.remove(flow.nn.Linear(2, 1), "weight")


@pytest.mark.parametrize("dim", [0, 1, -2, None])
def test_weight_norm(dim: int | None) -> None:
    found = []
    for m in (flow, torch):
        module = m.nn.Linear(3, 2)
        module.weight.data = m.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, -6.0]])
        module.bias.data = m.tensor([0.5, -0.5])
        utils = m.nn.utils
        utils.weight_norm(module, dim=dim)
        module.weight_g.data = module.weight_g.data * 2
        x = m.tensor([[1.0, 0.5, -1.0]])
        out = module(x)
        (out * out).sum().backward()
        grads = module.weight_g.grad, module.weight_v.grad
        utils.remove_weight_norm(module)
        found.append([out, *grads, module.weight, module(x)])
        assert sorted(n for n, _ in module.named_parameters()) == ["bias", "weight"]
    for a, b in zip(*found, strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("dim", [-3, -2, 1, 2])
def test_weight_norm_along_dims_from_the_end(dim: int) -> None:
    weight = np.random.default_rng(1).normal(size=(4, 2, 3))
    found = []
    for m in (flow, torch):
        module = m.nn.Conv1d(2, 4, 3).double()
        module.weight.data = m.tensor(weight)
        module = m.nn.utils.weight_norm(module, dim=dim)
        found.append(module.weight_g)
    close(*found, 1e-12)


def test_weight_norm_is_applied_and_removed_once() -> None:
    module = flow.nn.utils.weight_norm(flow.nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="two weight_norm hooks"):
        flow.nn.utils.weight_norm(module)
    with pytest.raises(ValueError, match="not found"):
        flow.nn.utils.remove_weight_norm(flow.nn.Linear(2, 2))


def test_first_values_are_left_out_and_no_number_is_drawn() -> None:
    flow.manual_seed(1)
    before = flow.get_rng_state().tolist()
    module = flow.nn.utils.skip_init(flow.nn.Linear, 3, 2)
    assert flow.get_rng_state().tolist() == before and module.weight.shape == (2, 3)
    flow.nn.Linear(3, 2)
    assert flow.get_rng_state().tolist() != before
    with pytest.raises(RuntimeError, match="Expected a Module"):
        flow.nn.utils.skip_init(dict)
    with pytest.raises(RuntimeError, match="'device' arg"):
        flow.nn.utils.skip_init(flow.nn.ReLU)


def test_batch_norm_of_one_rank_is_an_ordinary_one() -> None:
    plain = flow.nn.Sequential(flow.nn.Conv2d(1, 2, 1), flow.nn.BatchNorm2d(2))
    sync = flow.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    assert isinstance(sync[1], flow.nn.SyncBatchNorm)
    x = flow.randn(3, 1, 4, 4)
    close(sync(x), plain(x))
    close(sync[1].running_var, plain[1].running_var)
    assert sorted(sync.state_dict()) == sorted(plain.state_dict())


def test_batch_norm_over_ranks_made_of_sums() -> None:
    """The path of several ranks, of which there is one here: sums over all are its own."""
    theirs, ours = torch.nn.BatchNorm2d(2), flow.nn.SyncBatchNorm(2)
    data = np.random.default_rng(0).standard_normal((3, 2, 4, 4)).astype(np.float32)
    x, y = flow.from_numpy(data).requires_grad_(), torch.from_numpy(data).requires_grad_()
    out, wanted = ours._over_ranks(x), theirs(y)
    (out * out * out).sum().backward()
    (wanted * wanted * wanted).sum().backward()
    for a, b in ((out, wanted), (x.grad, y.grad), (ours.weight.grad, theirs.weight.grad)):
        close(a, b, 2e-4)
    close(ours.running_mean, theirs.running_mean, 1e-5)
    close(ours.running_var, theirs.running_var, 1e-5)


@pytest.mark.parametrize("norm_type", [float("-inf"), float("inf"), 3.0, 0, -1.5])
def test_gradients_are_clipped_by_any_norm(norm_type: float) -> None:
    found = []
    for m in (flow, torch):
        p = m.nn.Parameter(m.ones(3))
        p.grad = m.tensor([3.0, -4.0, 0.5])
        norm = m.nn.utils.clip_grad_norm_([p], 0.25, norm_type)
        found.append((norm, p.grad))
        assert float(m.nn.utils.clip_grad_norm_([], 1.0)) == 0.0
    for a, b in zip(*found, strict=True):
        close(a, b, 1e-5)
