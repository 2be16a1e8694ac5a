"""AutoTest: programs of random tensors that run on both libraries, whose results must agree.

    from oneflow.test_utils.automated_test_util import *

    class TestAdd(flow.unittest.TestCase):
        @autotest(n=5)
        def test_add(test_case):
            x, y = random_tensor(ndim=2, dim0=3), random_tensor(ndim=2, dim0=3, dim1=1)
            return torch.add(x, y, alpha=random().to(float))

Here `torch` is OneFlow and PyTorch at once. PyTorch is imported when it is first called.
"""

import os

from oneflow.test_utils.automated_test_util.autotest import autotest, globaltest
from oneflow.test_utils.automated_test_util.dual_object import torch
from oneflow.test_utils.automated_test_util.generators import (
    choice_pytorch_tensor,
    constant,
    nothing,
    oneof,
    random,
    random_bool,
    random_or_nothing,
    random_pytorch_dtype,
    random_pytorch_tensor,
)
from oneflow.test_utils.automated_test_util.placements import (
    all_cpu_placement,
    all_cuda_placement,
    all_placement,
    all_sbp,
    cpu_device,
    gpu_device,
    random_cpu_placement,
    random_device,
    random_gpu_placement,
    random_placement,
    random_sbp,
)
from oneflow.test_utils.automated_test_util.profiler import profile
from oneflow.test_utils.automated_test_util.tensors import (
    choice_tensor,
    random_dtype,
    random_tensor,
)

__all__ = [
    "all_cpu_placement",
    "all_cuda_placement",
    "all_placement",
    "all_sbp",
    "autotest",
    "choice_pytorch_tensor",
    "choice_tensor",
    "constant",
    "cpu_device",
    "globaltest",
    "gpu_device",
    "nothing",
    "oneof",
    "os",  # upstream's tests use it without importing it
    "profile",
    "random",
    "random_bool",
    "random_cpu_placement",
    "random_device",
    "random_dtype",
    "random_gpu_placement",
    "random_or_nothing",
    "random_placement",
    "random_pytorch_dtype",
    "random_pytorch_tensor",
    "random_sbp",
    "random_tensor",
    "torch",
]
