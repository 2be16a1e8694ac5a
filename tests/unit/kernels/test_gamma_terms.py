"""The incomplete gamma functions stop summing when their values have converged."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from oneflow.kernels.bessel import _gamma_fraction

ENOUGH_TERMS = 1000  # Lentz's fraction needs some times the root of its largest argument


class Counted:
    """NumPy's `where`, counted."""

    calls = 0

    def where(self, *args: Any) -> Any:
        self.calls += 1
        return np.where(*args)


def test_the_fraction_ends_when_its_factors_are_one_to_the_last_place(
    rng: np.random.Generator,
) -> None:
    shape = np.exp(rng.uniform(-6, 6, 2000))
    at = shape * rng.uniform(1, 2, 2000) + 1
    counted: Any = Counted()
    got = _gamma_fraction(counted, shape, at)  # two calls a term
    assert counted.calls <= 2 * ENOUGH_TERMS
    s, x = torch.tensor(shape), torch.tensor(at)
    front = torch.exp(s * torch.log(x) - x - torch.lgamma(s)).numpy()
    np.testing.assert_allclose(got * front, torch.special.gammaincc(s, x), rtol=1e-8)
