"""Values that are needed later outlive ops that use much scratch memory."""

from __future__ import annotations

import numpy as np

import oneflow as flow


class Between(flow.nn.Graph):  # type: ignore[misc]
    """An op with more than 16 workspace arrays beside one with many others, and a value across."""

    def build(self, s: flow.Tensor, q: flow.Tensor, other: flow.Tensor) -> object:
        across = flow.exp(q)
        small = flow.special.zeta(s, q)
        far = flow.special.zeta(other, other)
        return small * across, far


def test_workspaces_of_one_op_are_no_other_ops(rng: np.random.Generator) -> None:
    s, q = rng.random((5, 1)) + 1.5, rng.random(4) + 1.0
    other = rng.random((4, 4)) + 1.5
    got, _ = Between()(flow.tensor(s), flow.tensor(q), flow.tensor(other))
    end = q + 10_000  # Euler and Maclaurin: the rest of the sum is its integral and half a term
    terms = (q + np.arange(10_000)[:, None, None]) ** -s
    want = terms.sum(0) + end ** (1 - s) / (s - 1) + 0.5 * end**-s
    np.testing.assert_allclose(got.numpy(), want * np.exp(q), rtol=1e-9)
