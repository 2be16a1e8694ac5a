"""Calls of `vmap` and its kin, of PyTorch and of this library alike: each gets a module and its
`func`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import oneflow as flow


def normal(m: Any, *shape: int) -> Any:
    """A float64 tensor of a module, the same in each."""
    return m.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape))


def integers(m: Any, high: int, *shape: int) -> Any:
    """An int64 tensor of 0 .. high - 1, the same in each module."""
    return m.from_numpy(np.random.default_rng(sum(shape)).integers(0, high, shape))


def cube(m: Any) -> Any:
    """A Function of a program's own."""

    class Cube(m.autograd.Function):  # type: ignore[misc]
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any) -> Any:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad

    return Cube


def _items_written(a: Any) -> Any:
    b = a.clone()
    b[1] = a[0] * 2
    b[0] = 7.0
    return b


def _view_written(a: Any) -> Any:
    b = a.clone()
    view = b[1:]
    view.mul_(3)
    return b, view * b[0]


def _zeros_like_written(m: Any, a: Any) -> Any:
    b = m.zeros_like(a)
    b[1:] += a[1:]
    return b


def _new_zeros_written(m: Any, a: Any) -> Any:
    b = a.new_zeros(4)
    b[1:] += a
    return b


def _argument_written(m: Any, f: Any) -> Any:
    x = normal(m, 4, 3)
    return f.vmap(lambda a: a.mul_(2))(x), x


def _rows_of_a_jacobian(m: Any, f: Any) -> Any:
    x = normal(m, 3).requires_grad_()
    y = x.sin().cumsum(0)
    return f.vmap(lambda v: m.autograd.grad(y, x, v, retain_graph=True)[0])(m.eye(3, dtype=x.dtype))


def _linearized(m: Any, f: Any) -> Any:
    x, y = normal(m, 3), normal(m, 3) + 1
    out, along = f.linearize(lambda x, y: (x * y.sin()).cumsum(0), x, y)
    return out, along(y, x), along(x * 2, x)


def _tasks(m: Any, f: Any) -> Any:
    w = normal(m, 3).requires_grad_()
    x, y = normal(m, 4, 5, 3), normal(m, 4, 5)

    def loss(w: Any, x: Any, y: Any) -> Any:
        return ((x @ w - y) ** 2).mean()

    def adapted(w: Any, x: Any, y: Any) -> Any:
        return loss(w - 0.1 * f.grad(loss)(w, x, y), x, y)

    total = f.vmap(adapted, (None, 0, 0))(w, x, y).sum()
    total.backward()
    return total, w.grad


def _attention_gradients(m: Any, f: Any) -> Any:
    torch.manual_seed(0)
    module: Any = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    if m is flow:
        given = {k: flow.from_numpy(v.numpy().copy()) for k, v in module.state_dict().items()}
        module = flow.nn.MultiheadAttention(8, 2, batch_first=True).double()
        module.load_state_dict(given)
    weights = {k: v.detach() for k, v in module.named_parameters()}

    def loss(weights: Any, x: Any) -> Any:
        row = x[None]
        return f.functional_call(module, weights, (row, row, row))[0].sum()

    return f.vmap(f.grad(loss), (None, 0))(weights, normal(m, 4, 3, 8))


CASES: dict[str, Callable[[Any, Any], Any]] = {
    "twice": lambda m, f: f.vmap(f.vmap(lambda a, b: a @ b, (0, None)), (None, 0))(
        normal(m, 4, 3), normal(m, 5, 3)
    ),
    "dims from the end": lambda m, f: f.vmap(lambda a: a.sum(0), in_dims=-1, out_dims=-1)(
        normal(m, 4, 3, 5)
    ),
    "twice, other dims": lambda m, f: f.vmap(
        f.vmap(lambda a: a * 2, in_dims=1, out_dims=1), in_dims=2, out_dims=1
    )(normal(m, 4, 3, 5)),
    "softmax": lambda m, f: f.vmap(lambda a: m.softmax(a, 0))(normal(m, 4, 3, 5)),
    "index int": lambda m, f: f.vmap(lambda a: a[1])(normal(m, 4, 3, 5)),
    "index slice": lambda m, f: f.vmap(lambda a: a[:, 1:3])(normal(m, 4, 3, 5)),
    "index tensor": lambda m, f: f.vmap(lambda a, i: a[i])(
        normal(m, 4, 6, 5), integers(m, 6, 4, 2)
    ),
    "index tensor shared": lambda m, f: f.vmap(lambda a, i: a[i], (None, 0))(
        normal(m, 6, 5), integers(m, 6, 4, 2)
    ),
    "embedding": lambda m, f: f.vmap(lambda i, w: m.nn.functional.embedding(i, w), (0, None))(
        integers(m, 6, 4, 2), normal(m, 6, 5)
    ),
    "embedding both": lambda m, f: f.vmap(lambda i, w: m.nn.functional.embedding(i, w))(
        integers(m, 6, 4, 2), normal(m, 4, 6, 5)
    ),
    "gather": lambda m, f: f.vmap(lambda a, i: m.gather(a, 0, i))(
        normal(m, 4, 6, 5), integers(m, 6, 4, 2, 5)
    ),
    "scatter": lambda m, f: f.vmap(lambda a, i, b: a.scatter(0, i, b))(
        normal(m, 4, 6, 5), integers(m, 1, 4, 1, 5), normal(m, 4, 1, 5)
    ),
    "cross_entropy": lambda m, f: f.vmap(lambda x, t: m.nn.functional.cross_entropy(x, t))(
        normal(m, 4, 6, 5), integers(m, 5, 4, 6)
    ),
    "cross_entropy of one row": lambda m, f: f.vmap(
        lambda x, t: m.nn.functional.cross_entropy(x, t)
    )(normal(m, 4, 5), integers(m, 5, 4)),
    "mse": lambda m, f: f.vmap(m.nn.functional.mse_loss)(normal(m, 4, 5), normal(m, 4, 5)),
    "layer_norm": lambda m, f: f.vmap(lambda x, w, b: m.nn.functional.layer_norm(x, (5,), w, b))(
        normal(m, 4, 3, 5), normal(m, 4, 5), normal(m, 4, 5) + 1
    ),
    "group_norm": lambda m, f: f.vmap(lambda x: m.nn.functional.group_norm(x, 2))(
        normal(m, 4, 3, 6, 5)
    ),
    "batch_norm": lambda m, f: f.vmap(
        lambda x: m.nn.functional.batch_norm(x, None, None, training=True)
    )(normal(m, 4, 3, 6, 5)),
    "instance_norm": lambda m, f: f.vmap(lambda x: m.nn.functional.instance_norm(x))(
        normal(m, 4, 3, 6, 5)
    ),
    "conv1d": lambda m, f: f.vmap(m.nn.functional.conv1d)(
        normal(m, 4, 2, 3, 9), normal(m, 4, 5, 3, 3)
    ),
    "conv2d groups": lambda m, f: f.vmap(
        lambda x, w: m.nn.functional.conv2d(x, w, groups=2, padding=1, stride=2)
    )(normal(m, 4, 2, 4, 9, 9), normal(m, 4, 6, 2, 3, 3)),
    "conv_transpose2d": lambda m, f: f.vmap(lambda x, w: m.nn.functional.conv_transpose2d(x, w))(
        normal(m, 4, 2, 4, 5, 5), normal(m, 4, 4, 2, 3, 3)
    ),
    "max_pool": lambda m, f: f.vmap(lambda x: m.nn.functional.max_pool2d(x, 2))(
        normal(m, 4, 2, 4, 6, 6)
    ),
    "avg_pool": lambda m, f: f.vmap(lambda x: m.nn.functional.avg_pool2d(x, 2))(
        normal(m, 4, 2, 4, 6, 6)
    ),
    "adaptive_avg_pool2d": lambda m, f: f.vmap(lambda x: m.nn.functional.adaptive_avg_pool2d(x, 3))(
        normal(m, 4, 2, 4, 6, 6)
    ),
    "interpolate": lambda m, f: f.vmap(lambda x: m.nn.functional.interpolate(x, scale_factor=2))(
        normal(m, 4, 2, 4, 6, 6)
    ),
    "pad": lambda m, f: f.vmap(lambda x: m.nn.functional.pad(x, (1, 2)))(normal(m, 4, 2, 4)),
    "attention": lambda m, f: f.vmap(m.nn.functional.scaled_dot_product_attention)(
        normal(m, 4, 2, 3, 6, 5), normal(m, 4, 2, 3, 6, 5), normal(m, 4, 2, 3, 6, 5)
    ),
    "bmm": lambda m, f: f.vmap(m.bmm, (0, None))(normal(m, 4, 2, 3, 5), normal(m, 2, 5, 3)),
    "einsum": lambda m, f: f.vmap(lambda a, b: m.einsum("ij,kj->ik", a, b), (0, 1))(
        normal(m, 4, 3, 5), normal(m, 2, 4, 5)
    ),
    "dot": lambda m, f: f.vmap(m.dot)(normal(m, 4, 3), normal(m, 4, 3)),
    "outer": lambda m, f: f.vmap(m.outer)(normal(m, 4, 3), normal(m, 4, 2)),
    "mv": lambda m, f: f.vmap(m.mv, (None, 0))(normal(m, 4, 3), normal(m, 5, 3)),
    "cat": lambda m, f: f.vmap(lambda a, b: m.cat([a, b], 1), (0, None))(
        normal(m, 4, 3, 2), normal(m, 3, 5)
    ),
    "stack": lambda m, f: f.vmap(lambda a, b: m.stack([a, b], 1), (0, None))(
        normal(m, 4, 3, 2), normal(m, 3, 2)
    ),
    "split": lambda m, f: f.vmap(lambda a: m.split(a, 2))(normal(m, 4, 6, 2)),
    "unbind": lambda m, f: f.vmap(lambda a: a.unbind(1))(normal(m, 4, 6, 2)),
    "where": lambda m, f: f.vmap(lambda a, b: m.where(a > 0, a, b), (0, None))(
        normal(m, 4, 3), normal(m, 2, 3)
    ),
    "clamp": lambda m, f: f.vmap(lambda a: a.clamp(-0.5, 0.5))(normal(m, 4, 3)),
    "sort": lambda m, f: f.vmap(lambda a: tuple(m.sort(a, 0)))(normal(m, 4, 3, 5)),
    "topk": lambda m, f: f.vmap(lambda a: tuple(a.topk(2)))(normal(m, 4, 3, 5)),
    "max": lambda m, f: f.vmap(lambda a: tuple(a.max(1)))(normal(m, 4, 3, 5)),
    "argmax": lambda m, f: f.vmap(lambda a: a.argmax())(normal(m, 4, 3, 5)),
    "cumsum": lambda m, f: f.vmap(lambda a: a.cumsum(1))(normal(m, 4, 3, 5)),
    "std": lambda m, f: f.vmap(lambda a: a.std(1))(normal(m, 4, 3, 5)),
    "var_mean": lambda m, f: f.vmap(lambda a: tuple(m.var_mean(a, 0)))(normal(m, 4, 3, 5)),
    "norm": lambda m, f: f.vmap(lambda a: m.linalg.norm(a))(normal(m, 4, 3, 5)),
    "inv": lambda m, f: f.vmap(m.linalg.inv)(normal(m, 4, 3, 3)),
    "det": lambda m, f: f.vmap(m.linalg.det)(normal(m, 4, 3, 3)),
    "solve": lambda m, f: f.vmap(m.linalg.solve, (0, None))(normal(m, 4, 3, 3), normal(m, 3, 2)),
    "cholesky": lambda m, f: f.vmap(lambda a: m.linalg.cholesky(a @ a.T + m.eye(3, dtype=a.dtype)))(
        normal(m, 4, 3, 3)
    ),
    "fft": lambda m, f: f.vmap(m.fft.rfft)(normal(m, 4, 3, 6)),
    "tril": lambda m, f: f.vmap(m.tril)(normal(m, 4, 3, 6)),
    "diag": lambda m, f: f.vmap(m.diag)(normal(m, 4, 6)),
    "diagonal": lambda m, f: f.vmap(m.diagonal)(normal(m, 4, 6, 6)),
    "roll flip": lambda m, f: f.vmap(lambda a: a.roll(1, 0).flip(1))(normal(m, 4, 6, 6)),
    "permute": lambda m, f: f.vmap(lambda a: a.permute(2, 0, 1))(normal(m, 4, 2, 3, 5)),
    "view": lambda m, f: f.vmap(lambda a: a.view(-1, 3))(normal(m, 4, 6, 2)),
    "expand": lambda m, f: f.vmap(lambda a: a.expand(2, 3))(normal(m, 4, 3)),
    "unfold": lambda m, f: f.vmap(lambda a: a.unfold(0, 2, 1))(normal(m, 4, 6)),
    "repeat": lambda m, f: f.vmap(lambda a: a.repeat(2, 2))(normal(m, 4, 3, 2)),
    "inplace": lambda m, f: f.vmap(lambda a: a.clone().add_(1).mul_(a))(normal(m, 4, 3)),
    "items written": lambda m, f: f.vmap(lambda a: _items_written(a))(normal(m, 4, 3)),
    "a view written to": lambda m, f: f.vmap(lambda a: _view_written(a))(normal(m, 4, 3)),
    "zeros_like written to": lambda m, f: f.vmap(lambda a: _zeros_like_written(m, a))(
        normal(m, 4, 3)
    ),
    "new_zeros written to": lambda m, f: f.vmap(lambda a: _new_zeros_written(m, a))(
        normal(m, 4, 3)
    ),
    "logsumexp": lambda m, f: f.vmap(lambda a: a.logsumexp(0))(normal(m, 4, 3)),
    "prod": lambda m, f: f.vmap(lambda a: a.prod())(normal(m, 4, 3)),
    "cos sim": lambda m, f: f.vmap(lambda a, b: m.nn.functional.cosine_similarity(a, b, 0))(
        normal(m, 4, 3), normal(m, 4, 3) + 1
    ),
    "one_hot": lambda m, f: f.vmap(lambda i: m.nn.functional.one_hot(i, 6))(integers(m, 6, 4, 2)),
    "gelu": lambda m, f: f.vmap(m.nn.functional.gelu)(normal(m, 4, 3)),
    "Function": lambda m, f: f.vmap(lambda x: cube(m).apply(x))(normal(m, 4, 3)),
    "gradient of a Function in a batch": lambda m, f: f.grad(
        lambda x: f.vmap(lambda a: cube(m).apply(a).sum())(x).sum()
    )(normal(m, 4, 3)),
    "gradients of a Function": lambda m, f: f.vmap(f.grad(lambda a: cube(m).apply(a).sum()))(
        normal(m, 4, 3)
    ),
    "grad of vmap": lambda m, f: f.grad(
        lambda x: f.vmap(lambda a: (a.sin() * a[0]).sum())(x).prod()
    )(normal(m, 4, 3)),
    "second derivatives": lambda m, f: f.vmap(
        f.grad(lambda x: f.grad(lambda a: (a**4).sum())(x).sum())
    )(normal(m, 4, 3)),
    "hessians": lambda m, f: f.vmap(f.hessian(lambda a: (a**3).sum() * a[0]))(normal(m, 4, 3)),
    "jacobian of a tree": lambda m, f: f.jacrev(
        lambda d: {"x": d["a"] * d["b"].sum(), "y": d["b"] ** 2}
    )({"a": normal(m, 3), "b": normal(m, 2)}),
    "jacobian in chunks": lambda m, f: f.jacrev(lambda a: a.sin().cumsum(0), chunk_size=2)(
        normal(m, 5)
    ),
    "gradient of gradients of tasks": _tasks,
    "chunks": lambda m, f: f.vmap(
        lambda a, b: (a * b, a.sum()), (0, None), out_dims=(1, 0), chunk_size=3
    )(normal(m, 7, 3), normal(m, 3)),
    "out_dims None": lambda m, f: f.vmap(
        lambda a, b: (a * b, b * 2), (0, None), out_dims=(0, None)
    )(normal(m, 7, 3), normal(m, 3)),
    "a result that all share": lambda m, f: f.vmap(lambda a, b: b * 2, (0, None))(
        normal(m, 7, 3), normal(m, 3)
    ),
    "kwargs": lambda m, f: f.vmap(lambda a, b=None: a * b)(normal(m, 7, 3), b=normal(m, 3)),
    "a tree": lambda m, f: f.vmap(lambda t: t["a"] * t["b"][0], ({"a": 0, "b": (1,)},))(
        {"a": normal(m, 4, 3), "b": (normal(m, 3, 4),)}
    ),
    "rows of a jacobian": lambda m, f: _rows_of_a_jacobian(m, f),
    "jvp of each": lambda m, f: f.vmap(
        lambda x, t: f.jvp(lambda y: (y.sin() * y[0], y.sum()), (x,), (t,))
    )(normal(m, 4, 3), normal(m, 4, 3) + 1),
    "jvp of vmap": lambda m, f: f.jvp(
        f.vmap(lambda y: y.sin() * y[0]), (normal(m, 4, 3),), (normal(m, 4, 3) + 1,)
    ),
    "linearize": lambda m, f: _linearized(m, f),
    "batch_norm of constants": lambda m, f: f.vmap(
        lambda x: m.nn.functional.batch_norm(x, m.zeros(6, dtype=x.dtype), m.ones(6, dtype=x.dtype))
    )(normal(m, 4, 3, 6, 5)),
    "interpolate bilinear": lambda m, f: f.vmap(
        lambda x: m.nn.functional.interpolate(x, size=(9, 7), mode="bilinear")
    )(normal(m, 4, 2, 4, 6, 6)),
    "windows of an image": lambda m, f: f.vmap(lambda x: m.nn.functional.unfold(x, 2))(
        normal(m, 4, 2, 4, 6, 6)
    ),
    "masked_fill": lambda m, f: f.vmap(lambda x: x.masked_fill(x > 0, 0.0))(normal(m, 4, 3)),
    "index_select": lambda m, f: f.vmap(lambda x, i: x.index_select(0, i))(
        normal(m, 4, 6, 3), integers(m, 6, 4, 2)
    ),
    "index_add": lambda m, f: f.vmap(lambda x, i, y: x.index_add(0, i, y))(
        normal(m, 4, 6, 3), integers(m, 6, 4, 2), normal(m, 4, 2, 3)
    ),
    "take_along": lambda m, f: f.vmap(lambda x, i: m.take_along_dim(x, i, 1))(
        normal(m, 4, 6, 3), integers(m, 3, 4, 6, 1)
    ),
    "bce logits": lambda m, f: f.vmap(
        lambda x, y: m.nn.functional.binary_cross_entropy_with_logits(x, (y > 0).to(x.dtype))
    )(normal(m, 4, 3), normal(m, 4, 3)),
    "kl": lambda m, f: f.vmap(
        lambda x, y: m.nn.functional.kl_div(x.log_softmax(0), y.softmax(0), reduction="sum")
    )(normal(m, 4, 3), normal(m, 4, 3)),
    "svd": lambda m, f: f.vmap(lambda x: m.linalg.svdvals(x))(normal(m, 4, 3, 3)),
    "eigh": lambda m, f: f.vmap(lambda x: m.linalg.eigvalsh(x @ x.T))(normal(m, 4, 3, 3)),
    "gradients of MultiheadAttention": lambda m, f: _attention_gradients(m, f),
    "median": lambda m, f: f.vmap(lambda x: x.median())(normal(m, 4, 5)),
    "quantile": lambda m, f: f.vmap(lambda x: m.quantile(x, 0.3))(normal(m, 4, 5)),
    "searchsorted": lambda m, f: f.vmap(lambda s, v: m.searchsorted(s, v))(
        normal(m, 4, 5).sort(-1)[0], normal(m, 4, 3)
    ),
    "to dtype": lambda m, f: f.vmap(lambda s: s.float().double())(normal(m, 4, 5)),
    "sizes": lambda m, f: f.vmap(lambda s: s * s.numel() * s.ndim * s.shape[0])(normal(m, 4, 5)),
    "int pow": lambda m, f: f.vmap(lambda s: 2**s + s**2 - 3 % s)(normal(m, 4, 5)),
    "an argument written to": lambda m, f: _argument_written(m, f),
    "a condition on what is shared": lambda m, f: f.vmap(
        lambda s: s * 2 if (m.arange(3) > 1).any() else s
    )(normal(m, 4, 5)),
    "meshgrid": lambda m, f: f.vmap(lambda a, b: tuple(m.meshgrid(a, b, indexing="ij")))(
        normal(m, 4, 5), normal(m, 4, 2)
    ),
    "cdist": lambda m, f: f.vmap(m.cdist)(normal(m, 4, 5, 2), normal(m, 4, 3, 2)),
    "cross": lambda m, f: f.vmap(lambda a, b: m.linalg.cross(a, b))(
        normal(m, 4, 5, 3), normal(m, 4, 5, 3) + 1
    ),
    "kron": lambda m, f: f.vmap(m.kron)(normal(m, 4, 2, 3), normal(m, 4, 2, 2)),
    "trace": lambda m, f: f.vmap(m.trace)(normal(m, 4, 3, 3)),
    "nan_to_num": lambda m, f: f.vmap(m.nan_to_num)(normal(m, 4, 3, 3)),
    "bucketize": lambda m, f: f.vmap(
        lambda x: m.bucketize(x, m.tensor([-1.0, 0.0, 1.0], dtype=m.float64))
    )(normal(m, 4, 3)),
    "complex": lambda m, f: f.vmap(lambda x: m.view_as_real(m.fft.fft(x)).sum())(normal(m, 4, 6)),
    "prelu": lambda m, f: f.vmap(lambda x, w: m.nn.functional.prelu(x, w))(
        normal(m, 4, 2, 3), normal(m, 4, 3)
    ),
    "glu": lambda m, f: f.vmap(lambda x: m.nn.functional.glu(x))(normal(m, 4, 2, 6)),
    "lerp": lambda m, f: f.vmap(m.lerp)(normal(m, 4, 2), normal(m, 4, 2) + 1, normal(m, 4, 2) * 3),
    "addcmul": lambda m, f: f.vmap(lambda a, b, c: m.addcmul(a, b, c, value=0.5))(
        normal(m, 4, 2), normal(m, 4, 2) + 1, normal(m, 4, 2) * 3
    ),
    "addmm": lambda m, f: f.vmap(m.addmm)(
        normal(m, 4, 2, 3), normal(m, 4, 2, 5), normal(m, 4, 5, 3)
    ),
    "baddbmm": lambda m, f: f.vmap(m.baddbmm, (None, 0, 0))(
        normal(m, 2, 2, 3), normal(m, 4, 2, 2, 5), normal(m, 4, 2, 5, 3)
    ),
    "matmul 1d": lambda m, f: f.vmap(m.matmul)(normal(m, 4, 3), normal(m, 4, 3, 2)),
    "tensordot": lambda m, f: f.vmap(lambda a, b: m.tensordot(a, b, 1))(
        normal(m, 4, 3, 2), normal(m, 4, 2, 5)
    ),
}
