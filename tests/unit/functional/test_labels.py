"""Labels that are no classes."""

from __future__ import annotations

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F


@pytest.mark.parametrize("rows", [2, 6000])  # the plain kernel, and the compiled one
@pytest.mark.parametrize("label", [3, -1])
def test_a_label_that_is_no_class_is_refused(rows: int, label: int) -> None:
    labels = np.zeros(rows, np.int64)
    labels[1] = label
    with pytest.raises(
        IndexError, match=rf"Target {label} is out of bounds: labels are classes, 0 to 2"
    ):
        F.cross_entropy(flow.zeros(rows, 3), flow.tensor(labels))


def test_ignored_labels_do_not_count() -> None:
    logits = flow.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    loss = F.cross_entropy(logits, flow.tensor([2, -100]))
    assert loss.item() == pytest.approx(np.log(np.exp([1.0, 2.0, 3.0]).sum()) - 3.0, rel=1e-6)


def test_negative_labels_of_nll_are_refused() -> None:
    with pytest.raises(IndexError, match="Target -2 is out of bounds"):
        F.nll_loss(flow.zeros(2, 3), flow.tensor([0, -2]))
