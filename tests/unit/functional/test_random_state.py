"""Seeds: unforeseen where nobody chose one, and one for all where somebody did."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from oneflow.functional.creation import randn
from oneflow.functional.random_state import (
    Generator,
    default_generator,
    initial_seed,
    manual_seed,
    seed,
)
from oneflow.tensor.tensor import wrap
from oneflow.utils.data import DataLoader, TensorDataset

DRAW = (
    "import oneflow as flow;"
    "print(flow.initial_seed(), flow.default_generator.initial_seed(), flow.randn(2).tolist())"
)


def test_processes_without_a_seed_draw_different_numbers() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", DRAW], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (run.stdout for run in runs)
    assert first != second
    assert first.split()[0] == first.split()[1] != second.split()[0]


def test_generator_of_ones_own_begins_where_pytorchs_does() -> None:
    assert Generator().initial_seed() == torch.Generator().initial_seed()
    first, second = (randn(4, generator=Generator()).numpy() for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_seed_is_new_each_time_and_can_be_used_again() -> None:
    chosen = seed()
    assert chosen == initial_seed() == default_generator.initial_seed()
    drawn = randn(4).numpy()
    assert seed() != chosen
    manual_seed(chosen)
    np.testing.assert_array_equal(randn(4).numpy(), drawn)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shuffle_of_a_seed_does_not_depend_on_the_number_of_workers(num_workers: int) -> None:
    data = TensorDataset(wrap(np.arange(12)))

    def orders(num_workers: int) -> list[list[int]]:
        manual_seed(5)
        loader = DataLoader(data, batch_size=12, shuffle=True, num_workers=num_workers)
        return [batch.tolist() for _ in range(2) for (batch,) in loader]

    found = orders(num_workers)
    assert found == orders(0)
    assert found[0] != found[1]
