"""A global AutoTest on every placement of the job's ranks, and every SBP of two dims."""

from __future__ import annotations

import unittest
from typing import Any

import oneflow as flow
from oneflow.test_utils.automated_test_util import (
    all_placement,
    all_sbp,
    autotest,
    globaltest,
    random,
    random_tensor,
    torch,
)


class TestLinear(unittest.TestCase):
    @globaltest
    def test_a_layer_in_every_layout(self) -> None:
        @autotest(n=1)
        def check(_: object, placement: Any, sbp: Any) -> Any:
            x = random_tensor(ndim=2, dim0=8, dim1=16).to_global(placement=placement, sbp=sbp)
            layer = torch.nn.Linear(16, 4)
            whole = [flow.sbp.broadcast] * len(placement.hierarchy)
            layer.to_global(placement=placement, sbp=whole)
            return torch.nn.functional.gelu(layer(x)) + random(1, 3).to(float)

        layouts = [(p, sbp) for p in all_placement() for sbp in all_sbp(p, max_dim=2)]
        self.assertEqual(len(layouts), 4 + 16)  # one axis, and hosts by ranks
        for placement, sbp in layouts:
            check(self, placement, sbp)


if __name__ == "__main__":
    unittest.main()
