"""Connectionist temporal classification and margins, against PyTorch and closed forms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import oneflow as flow
from tests.parity.values import compare, to_flow


def case(rng: np.random.Generator) -> tuple[torch.Tensor, ...]:
    """Scores of 12 frames, 4 samples and 6 classes; a repeated label, an empty target, and one that
    does not fit its input.
    """
    scores = torch.from_numpy(rng.normal(size=(12, 4, 6)))
    targets = torch.from_numpy(rng.integers(1, 6, (4, 5)))
    targets[0, 1] = targets[0, 0]
    return scores, targets, torch.tensor([12, 10, 7, 3]), torch.tensor([5, 3, 0, 4])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_loss_and_gradients_are_those_of_torch(rng: np.random.Generator, reduction: str) -> None:
    scores, *rest = case(rng)
    found = []
    for m, x, given in ((torch, scores, rest), (flow, to_flow(scores), to_flow(rest))):
        x = x.clone().requires_grad_()
        logs = m.nn.functional.log_softmax(x, -1)
        logs.retain_grad()
        loss = m.nn.functional.ctc_loss(logs, *given, reduction=reduction, zero_infinity=True)
        (loss * 1.5).sum().backward()
        found.append((loss.detach(), logs.grad, x.grad))
    compare(*found)


def test_targets_in_a_row_and_one_sample_are_taken(rng: np.random.Generator) -> None:
    scores, targets, frames, lengths = case(rng)
    logs = scores.log_softmax(-1)
    flat = torch.cat([targets[i, :n] for i, n in enumerate(lengths)])
    wanted = torch.nn.functional.ctc_loss(logs, flat, frames, lengths, reduction="none")
    ours = flow.nn.functional.ctc_loss(
        to_flow(logs), to_flow(flat), frames.tolist(), lengths.tolist(), reduction="none"
    )
    compare(wanted, ours)
    single = (logs[:, 0], targets[0], 12, 5)
    compare(
        torch.nn.functional.ctc_loss(*single[:2], torch.tensor(12), torch.tensor(5)),
        flow.nn.CTCLoss()(to_flow(logs[:, 0]), to_flow(targets[0]), 12, 5),
    )


def test_loss_is_the_sum_over_all_paths(rng: np.random.Generator) -> None:
    logs = torch.from_numpy(rng.normal(size=(4, 1, 3))).log_softmax(-1).numpy()
    total = 0.0
    for path in itertools.product(range(3), repeat=4):
        read = [c for c, _ in itertools.groupby(path) if c != 0]
        if read == [2, 1]:
            total += np.exp(sum(logs[t, 0, c] for t, c in enumerate(path)))
    loss = flow.nn.CTCLoss(reduction="sum")(flow.tensor(logs), flow.tensor([[2, 1]]), [4], [2])
    assert loss.item() == pytest.approx(-np.log(total), rel=1e-12)


def test_lengths_beyond_the_data_are_refused(rng: np.random.Generator) -> None:
    logs = flow.tensor(rng.normal(size=(4, 1, 3)))
    for frames, lengths in (([5], [2]), ([4], [3]), ([4, 4], [2])):
        with pytest.raises(RuntimeError):
            flow.nn.functional.ctc_loss(logs, flow.tensor([[2, 1]]), frames, lengths)


def greedy(logs: np.ndarray, frames: list[int], merge: bool) -> tuple[list[list[int]], list[float]]:
    """The best path, read one frame after another."""
    labels, costs = [], []
    blank = logs.shape[2] - 1
    for n, count in enumerate(frames):
        row, before, cost = [], blank, 0.0
        for t in range(count):
            best = int(logs[t, n].argmax())
            cost -= logs[t, n, best]
            if best != blank and not (merge and best == before):
                row.append(best)
            before = best
        labels.append(row + [0] * (logs.shape[0] - len(row)))
        costs.append(cost)
    return labels, costs


@pytest.mark.parametrize("merge", [True, False])
def test_decoder_reads_the_best_path(rng: np.random.Generator, merge: bool) -> None:
    logs, frames = rng.normal(size=(15, 5, 3)), [15, 12, 1, 0, 9]
    wanted = greedy(logs, frames, merge)
    labels, costs = flow.nn.functional.ctc_greedy_decoder(flow.tensor(logs), frames, merge)
    assert labels.tolist() == wanted[0]
    assert np.allclose(costs.numpy()[:, 0], wanted[1])


def test_margin_is_put_on_the_labels_cosine(rng: np.random.Generator) -> None:
    x = rng.uniform(-0.9, 0.9, (4, 6))
    labels = np.array([2, 0, 5, -1])
    given = flow.tensor(x).requires_grad_()
    out = flow.nn.CombinedMarginLoss(1.1, 0.3, 0.2)(given, flow.tensor(labels))
    wanted = torch.from_numpy(x).requires_grad_()
    moved = wanted.clone()
    for row, label in enumerate(labels[:3]):
        moved[row, label] = torch.cos(1.1 * torch.acos(wanted[row, label]) + 0.3) - 0.2
    compare(moved.detach(), out.detach())
    moved.sum().backward()
    out.sum().backward()
    compare(wanted.grad, given.grad)
