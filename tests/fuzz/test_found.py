"""Programs that once were answered otherwise than by PyTorch, shrunk, each for its kind."""

from __future__ import annotations

import pytest

from .drawing import Program
from .running import EAGER, differences

FOUND = {
    "a concatenation meets the dtypes of all": """
        v0 = m.tensor([True]); v1 = m.tensor([0.5], dtype=m.float16)
        v2 = m.cat([v0, v1, v0]); v3 = m.hstack([v1, v0, m.tensor([2.0])])
        v4 = m.cat([m.ones(0, dtype=m.float64), v1])""",
    "a base whose view was written with a gradient requires one": """
        v0 = m.ones(3).requires_grad_(); v1 = m.zeros(2, 3)
        v2 = v1[1]
        v2[...] = v0 * 2
        v3 = m.tensor([v1.requires_grad, v2.requires_grad, v2.is_leaf])""",
    "a view of what was written to since has the history of now": """
        v0 = m.tensor([[0.5, 1.0], [1.5, 2.0]]).requires_grad_()
        v1 = v0 * 2
        v2 = v1.T
        v3 = v2.narrow(0, 1, 1)
        v2.exp_()
        v4, = m.autograd.grad(v3.sum(), [v0])""",
    "what was overwritten by a number gets no gradient": """
        v0 = m.tensor([[1.0]]).requires_grad_(); v1 = m.ones(1, 5, 1) * 1
        v1[:, 0] = v0
        v2 = v1[0]
        v2[True] = -1
        v3, = m.autograd.grad([v1, v2], [v0], [m.ones_like(v1), m.ones_like(v2)])""",
    "quotients, gathered and scattered values may be overwritten": """
        v0 = m.tensor([[1.0, 2.0]]).requires_grad_(); v1 = v0 * 3; v2 = m.tensor([[0]])
        v3 = v1 / v0
        v4 = v1.gather(1, v2)
        v5 = v0.sort(1)[0] * 2
        v3.sqrt_()
        v1.fill_(7)
        v6, = m.autograd.grad(v3.sum() + v4.sum() + v5.sum(), [v0])""",
    "x[...] and x[:] are other tensors than x": """
        v0 = m.ones(2, 3)[0]
        v1 = v0[...]
        v1.unsqueeze_(0)
        v2 = v0[:]
        v2.unsqueeze_(0)""",
    "a shape that is changed in place": """
        v0 = m.tensor([[1.0, 2.0], [3.0, 4.0]]).requires_grad_(); v1 = v0 * 2
        v2 = v1[0]; v3 = v1[:, 1:]
        v1.t_()
        v2.mul_(3)
        v4 = v1.unsqueeze(0)
        v5 = v4[0][m.tensor([1])]
        v4.transpose_(0, 1)
        v6, = m.autograd.grad(v1.sum() + v3.sum() + (v4 * v4).sum() + v5.sum(), [v0])""",
    "a mask of another shape is no mask": """
        v0 = m.ones(2); v0[[True]] = 2.0""",
    "no gradient comes from where none comes": """
        v0 = m.tensor([7.0, 0.0, 1.0]).requires_grad_(); v1 = m.tensor([-2.25, -0.5, 2.0])
        v2 = m.special.xlogy(v0, v1) * m.tensor([0.0, 0.0, 1.0])
        v3, = m.autograd.grad(v2.sum(), [v0])""",
    "integers to negative powers": """
        v0 = m.tensor([1, -1, 2, 0, 3, -1]) ** m.tensor([-1, -2, -1, 3, 2, -3])
        v1 = m.tensor([-(2**63), 1]); v2 = m.tensor([1, 1]) ** v1; v3 = (-1) ** v1; v4 = 2 ** v1""",
    "an integer alpha between bools, and beside floats": """
        v0 = m.tensor([True, False]); v1 = m.ones(2).addcmul(v0, v0, value=2)
        v2 = m.add(v0, v0, alpha=2); v3 = m.tensor([1, 2]).add(v0, alpha=3)""",
    "unsigned integers have signs to copy": """
        v0 = m.tensor([1, 2], dtype=m.uint8).copysign(-1)""",
    "x @= y may have another shape": """
        v0 = m.ones(4)
        v0 @= m.ones(4)""",
    "bools and a bool": """
        v0 = m.tensor([True, False])
        v1 = v0 + True; v2 = v0 * False; v3 = True + v0
        v0 += True""",
    "different numbers keep their dtype": """
        v0 = m.tensor([2.0, 1.0, 2.0], dtype=m.bfloat16)
        v1 = m.unique(v0); v2 = m.unique_consecutive(v0)""",
    "an infinite gradient of a maximum goes nowhere else": """
        v0 = m.tensor([[[1.0, 0.0, 0.5]]]).requires_grad_()
        v1, = m.autograd.grad(m.nn.functional.max_pool1d(v0, 3).atanh().sum(), [v0])
        v2, = m.autograd.grad(m.nn.functional.adaptive_max_pool1d(v0, 1).atanh().sum(), [v0])""",
    "slices with NaN are not scaled down": """
        v0 = m.renorm(m.tensor([[1.0, float('nan')], [1.0, 3.0]]), 2, 1, 1.0)""",
    "distances of small integers do not wrap": """
        v0 = m.pairwise_distance(m.ones(1, 3), m.ones(1, 3, dtype=m.uint8))
        v1 = m.cosine_similarity(m.ones(2, 3, dtype=m.float16), m.ones(2, 3, dtype=m.int64))""",
    "as many chunks of nothing as asked for": """
        v0, v1, v2, = m.chunk(m.ones(0, 2), 3)
        v3 = m.nn.functional.glu(m.ones(0, 2), 0)""",
    "no channels to pool": """
        v0 = m.nn.functional.adaptive_max_pool2d(m.ones(0, 4, 4), 2)""",
    "the normal density at 0": """
        v0 = m.tensor([0.0, -0.0, 1.0]).requires_grad_()
        v1 = m.special.ndtr(v0)
        v2, = m.autograd.grad(v1.sum(), [v0])""",
    "log gamma is 0 at 1 and 2": """
        v0 = m.tensor([1.0, 2.0, float('-inf')], dtype=m.float64).lgamma() == 0""",
    "lerp from the nearer end": """
        v0 = m.tensor([float('inf')]).lerp(m.ones(1), 0.5)
        v1 = m.ones(1).lerp(m.tensor([float('inf')]), m.tensor([0.25]))""",
    "losses of two dtypes": """
        v0 = m.tensor([1.0, 2.0], dtype=m.float16); v1 = m.tensor([True, False])
        v2 = m.nn.functional.poisson_nll_loss(v0, v1)
        v3 = m.nn.functional.smooth_l1_loss(m.ones(2), m.tensor([3.0, 1.5], dtype=m.float64))
        v4 = m.nn.functional.binary_cross_entropy_with_logits(v0, m.tensor([0.5, 1.0]))""",
    "integers that meet as floats are converted once": """
        v0 = m.tensor([1, 0], dtype=m.uint8); v1 = m.tensor(-4); v2 = v0 / v1
        v3 = m.atan2(v0, v1); v4 = v0.copysign(v1); v5 = m.xlogy(v0, v1); v6 = v1 / (v0 + 1)
        v7 = m.special.xlog1py(v0, v1); v8 = m.tensor([2], dtype=m.int8) / m.tensor(-300)
        v9 = m.special.hermite_polynomial_h(m.tensor(-300), m.tensor([1], dtype=m.int8))""",
    "quantiles between infinities": """
        v0 = m.tensor([[1.5, float('-inf')], [1.0, float('inf')]]).requires_grad_()
        v1 = v0.quantile(0.5, 1); v2 = v0.nanquantile(0.25, 1)
        v3, = m.autograd.grad([v1, v2], [v0], [m.ones(2), m.ones(2)])""",
    "the angle of what is no number has no slope": """
        v0 = m.tensor([float('nan'), 1.0, -1.0]).requires_grad_()
        v1, = m.autograd.grad(m.angle(v0).sum(), [v0])""",
    "memory of complex numbers by strides": """
        v0 = m.arange(6.).requires_grad_(); v1 = m.complex(v0, v0 * 2)
        v2 = m.view_as_real(v1)[1].as_strided((2,), (1,)); v3 = v1.imag.as_strided((2,), (2,))
        v4 = m.view_as_real(m.view_as_complex(v0.view(3, 2)).as_strided((2,), (1,)))
        v5, = m.autograd.grad(v2.sum() + v3.sum() + v4.sum(), [v0])""",
    "margins that are just met": """
        v0 = m.tensor([[1.0, 2.0, 0.5]]).requires_grad_(); v6 = m.tensor([1])
        v1 = m.nn.functional.multi_margin_loss(v0, v6)
        v2 = m.nn.functional.multilabel_margin_loss(v0, m.tensor([[1, -1, 0]]))
        v5 = m.nn.functional.binary_cross_entropy_with_logits
        v3 = v5(v0 - 1, m.ones(1, 3), pos_weight=m.tensor(2.0))
        v4, = m.autograd.grad(v1 + v2 + v3, [v0])""",
    "nothing is divided by 0": """
        v0 = m.ones(0, 2, dtype=m.int64) % m.zeros(1, 2, dtype=m.int64)
        v1 = m.ones(0, dtype=m.int64) // m.zeros(1, dtype=m.int64)""",
    "no classes to choose from": """
        v0 = m.ones(1, 0, 4, 5); v1 = m.zeros(1, 4, 5, dtype=m.int64)
        v2 = m.nn.functional.nll_loss(v0, v1, reduction='sum', ignore_index=0)""",
    "running products over one element": """
        v0 = m.tensor([[float('-inf')], [0.0]]).requires_grad_()
        v1, = m.autograd.grad(v0.cumprod(1).sum(), [v0])""",
    "results of several steps forget their history": """
        v0 = m.tensor([[1.0, 2.0]]).requires_grad_(); v1 = v0 * 2
        v2 = v1.max(-1)[0]; v3 = v1.mul(3).sum(1)
        v2.detach_()
        v4, = m.autograd.grad(v3.sum(), [v0])
        v5 = v0.sum_to_size(()); v6 = v0.gather(0, m.zeros(0, 2, dtype=m.int64))
        v6 *= 2""",
    "three operands meet in one dtype at once": """
        v0 = m.ones(2, dtype=m.bfloat16); v1 = m.tensor(2.0); v2 = m.ones(2, dtype=m.int64)
        v3 = v0.addcmul(v1, v2); v4 = v0.addcdiv(v1, v2); v5 = v2[0].clamp(v1.half(), v0)
        v6 = m.ones(2, dtype=m.float16).lerp(v0.half(), m.tensor(True))""",
    "as often as a divisor fits": """
        v0 = m.tensor([1 / 3]).requires_grad_(); v1 = m.ones(1) % v0
        v2, = m.autograd.grad(v1, [v0], [m.ones(1)])""",
    "ravel lays elements side by side": """
        v0 = m.ones(3, 3); v1 = v0.diagonal().ravel(); v2 = v0[0].ravel()
        v1 += 1
        v2 += 3""",
    "differences of nothing are the tensor itself": """
        v0 = m.ones(0, 3); v1 = m.diff(v0, 2, 0)
        v1.unsqueeze_(0)""",
    "a product of vectors is no view": """
        v0 = m.ones(2).requires_grad_(); v1 = v0 @ v0
        v2 = v1[None]
        v2[1:] = 1
        v3, = m.autograd.grad(v2.sum(), [v1])""",
    "no gradient of a slope comes from where it does not count": """
        v0 = m.ones(2, 3); v1 = m.ones(2).requires_grad_()
        v2, = m.autograd.grad(m.nn.functional.prelu(v0.T, v1).erfinv().sum(), [v1])""",
    "no factors at all": """
        v0 = m.tensor([[float('nan')]]).requires_grad_(); v1 = m.linalg.matrix_power(v0, 0)
        v2, = m.autograd.grad(v1.cov(), [v0])""",
    "a matrix with NaN leaves others of its batch alone": """
        v0 = m.tensor([[[9.0, 2.0], [-8.0, 7.0]], [[float('nan')] * 2] * 2]).double()
        v0.requires_grad_()
        v1 = m.linalg.matrix_exp(v0); v2 = m.linalg.matrix_exp(v0.nan_to_num(float('inf')))[0]
        v3, = m.autograd.grad(v1.sum(), [v0])""",
    "logits of infinite targets": """
        v0 = m.tensor([0.5, -1.0, 2.0]).requires_grad_(); v1 = m.tensor([float('-inf')] * 3)
        v2 = m.nn.functional.binary_cross_entropy_with_logits(v0, v1, reduction='none')
        v3, = m.autograd.grad(v2.sum(), [v0])""",
    "rests, quotients and inverse error functions may be overwritten": """
        v0 = m.tensor([0.5, -0.25]).requires_grad_(); v1 = v0 * 3; v2 = m.tensor([2.0, 0.5])
        v3 = v1 % v2; v4 = v0.erfinv(); v5 = 3 / v0; v6 = m.fmod(v2, v0)
        v1.zero_(); v4.add_(v0); v5[0] = v0[1]; v6 *= 2
        v7, = m.autograd.grad((v3 + v4 + v5 + v6).sum(), [v0])""",
    "lengths of samples are read when the loss is computed": """
        v0 = m.zeros(3, 1, 3).requires_grad_(); v1 = m.tensor([[1]]); v2 = m.tensor([3])
        v3 = m.nn.functional.ctc_loss(v0.log_softmax(-1), v1, v2, m.tensor([1]))
        v2.fill_(2)
        v4, = m.autograd.grad(v3, [v0])""",
    "infinities that nothing is reduced into": """
        v0 = m.tensor([[float('-inf'), 2.25], [2.5, -1.25]]).requires_grad_(); v1 = m.ones(2, 2)
        v2 = v0.scatter_reduce(1, m.tensor([[1, 1], [1, 1]]), v1, 'amax')
        v3, = m.autograd.grad(v2.sum(), [v0])""",
    "a shape that is changed in place is no write to views": """
        v0 = m.tensor([[1.0, 2.0]]).requires_grad_(); v1 = m.tensor([[3.0, 4.0]])
        v2 = v0.kron(v1)
        v1.transpose_(0, 1)
        v3, = m.autograd.grad(v2.sum(), [v0])""",
    "quantiles of NaN": """
        v0 = m.tensor([[1.75, float('nan')], [1.0, 2.0]]).requires_grad_()
        v1 = v0.quantile(0.25, 1)
        v2, = m.autograd.grad(v1, [v0], [m.ones(2)])""",
    "rows of padding do not count": """
        v0 = m.tensor([[float('inf')] * 2, [2.0, 3.0]]).requires_grad_()
        v1 = m.nn.functional.embedding_bag(m.tensor([[0, 1]]), v0, mode='sum', padding_idx=0)
        v2, = m.autograd.grad(v1.sum(), [v0])""",
    "the transpose of a number": """
        v0 = m.tensor(2.0); v1 = v0.mT; v2 = v0.adjoint()
        v1.unsqueeze_(0)""",
}


@pytest.mark.parametrize("kind", FOUND)
def test_programs_that_were_answered_otherwise(kind: str) -> None:
    lines = [part.strip() for line in FOUND[kind].split("\n") for part in line.split("; ")]
    program = Program((), tuple(line for line in lines if line))
    assert [str(d) for d in differences(program, (EAGER,))] == []
