"""Functions that only upstream's own code calls, against PyTorch or written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oneflow as flow
from tests.parity.values import compare, to_flow

C = flow._C
F = torch.nn.functional


def tensors(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in shapes]


def test_reductions_over_some_dims_and_over_all(rng: np.random.Generator) -> None:
    (x,) = tensors(rng, (2, 3, 4))
    y = to_flow(x)
    compare(x.amax((0, 2)), C.reduce_max(y, [0, 2]))
    compare(x.amin((0, 1, 2), True), C.reduce_min(y, [], keepdim=True))
    compare(x.sum((1, 2), True), C.reduce_sum(y, [1, 2], True))
    compare(x.sum(dtype=torch.float64), C.reduce_sum(y, dtype=flow.float64))
    compare(x.mean(0), C.reduce_mean(y, 0))
    compare(x.prod(2).prod(0), C.reduce_prod(y, [0, 2]))
    compare((x > 0).all(2).all(0), C.reduce_all(y > 0, [0, -1]))
    compare((x > 2).any(), C.reduce_any(y > 2))
    x[0, 0, 0] = float("nan")
    compare(x.nansum((1, 2)), C.reduce_nansum(to_flow(x), [1, 2]))
    best, mask, count = C.reduce_max_device_stage(flow.tensor([[1, 5, 5], [2, 0, 1]]), [1])
    assert best.tolist() == [[5], [2]] and count.tolist() == [[2], [1]]
    assert mask.tolist() == [[False, True, True], [True, False, False]]
    least, where = C.reduce_min_global_stage(flow.tensor([[1, 5]]), flow.tensor([[1, 2]]), [1])
    assert least.tolist() == [1] and where.tolist() == [[True, False]]


def test_gradients_written_out(rng: np.random.Generator) -> None:
    (x, d) = tensors(rng, (5,), (5,))
    for name in ("tan", "tanh", "cosh"):
        given = x.clone().requires_grad_()
        getattr(torch, name)(given).backward(d)
        compare(given.grad, getattr(C, f"{name}_grad")(*to_flow([x, d])), where=name)
    y = x.sigmoid()
    compare(d * y * (1 - y), C.sigmoid_grad(*to_flow([y, d])))
    for weight in (None, x.abs()):
        given = x.clone().requires_grad_()
        t, pos = y.round(), x.exp()
        F.binary_cross_entropy_with_logits(given, t, weight, None, None, "none", pos).backward(d)
        found = C.binary_cross_entropy_with_logits_loss_grad(*to_flow([d, x, t, weight, pos]))
        compare(given.grad, found)
    assert C.reciprocal_no_nan(flow.tensor([2.0, 0.0])).tolist() == [0.5, 0.0]
    assert C.rint(flow.tensor([0.5, 1.5, -2.5])).tolist() == [0.0, 2.0, -2.0]
    compare(x.norm(), C.sqrt_square_sum(to_flow(x)))


def test_losses_of_upstreams_names(rng: np.random.Generator) -> None:
    x, w, d = tensors(rng, (4, 3), (4, 3), (4,))
    t = w.softmax(-1)
    for reduction in ("none", "sum"):
        compare(
            F.kl_div(x, t, reduction=reduction), C.kl_div_loss(*to_flow([x, t]), False, reduction)
        )
        compare(
            F.binary_cross_entropy(t, x.sigmoid(), w, reduction=reduction),
            C.binary_cross_entropy_loss(*to_flow([t, x.sigmoid(), w]), reduction),
        )
        compare(
            F.binary_cross_entropy_with_logits(x, t, w, pos_weight=t[0], reduction=reduction),
            C.binary_cross_entropy_with_logits_loss(*to_flow([x, t, w, t[0]]), reduction),
        )
    label = torch.tensor([0, 2, 1, 1])
    compare(-t.log()[range(4), label], C.distributed_sparse_cross_entropy(*to_flow([t, label]), 3))
    compare(
        d[:, None] * (t - F.one_hot(label)),
        C.softmax_cross_entropy_grad(*to_flow([d, F.one_hot(label).float(), t])),
    )


def test_windows_and_sizes_of_upstreams_names(rng: np.random.Generator) -> None:
    x, w, b = tensors(rng, (2, 3, 5, 6), (3, 4, 3, 3), (4,))
    compare(
        F.conv_transpose2d(x, w, b, 2, 1, 1, 1, 2),
        C.deconv2d(
            *to_flow([x, w, b]), 4, [1, 1], "channels_first", [3, 3], [1, 1], [2, 2], [2, 2]
        ),
    )
    for name, mode in (
        ("nearest_2d", "nearest"),
        ("bilinear_2d", "bilinear"),
        ("bicubic_2d", "bicubic"),
    ):
        corners = None if mode == "nearest" else True
        wanted = F.interpolate(x, scale_factor=(2.0, 1.5), mode=mode, align_corners=corners)
        ours = getattr(C, f"upsample_{name}")
        given = {} if mode == "nearest" else {"align_corners": True}
        compare(wanted, ours(to_flow(x), height_scale=2.0, width_scale=1.5, **given))
        compare(wanted, ours(to_flow(x), output_size=[10, 9], **given))
    nhwc = x.permute(0, 2, 3, 1)
    compare(F.avg_pool2d(x, 2).permute(0, 2, 3, 1), C.avg_pool2d_nhwc(to_flow(nhwc), 2))
    flipped = C.image_flip(to_flow(nhwc), flow.tensor([1, 3]))
    compare(torch.stack([nhwc[0].flip(1), nhwc[1].flip(0, 1)]), flipped)
    assert (C.image_flip(to_flow(nhwc), flow.tensor([2, 2])) == to_flow(nhwc.flip(1))).all()
    assert (C.image_flip(to_flow(nhwc), flow.tensor([0, 0])) == to_flow(nhwc)).all()


def test_parts_of_batch_norm_make_the_whole(rng: np.random.Generator) -> None:
    """Two ranks' batches, one after the other, against one batch of both."""
    x, w, b, d = tensors(rng, (6, 3, 2, 2), (3,), (3,), (6, 3, 2, 2))
    mean, var = torch.zeros(3), torch.ones(3)
    given, weight, bias = (t.clone().requires_grad_() for t in (x, w, b))
    wanted = F.batch_norm(given, mean, var, weight, bias, True, 0.3, 1e-5)
    wanted.backward(d)
    parts = [to_flow(x[:2]), to_flow(x[2:])]
    stats = [C.batch_norm_stats(p, 1, 1e-5) for p in parts]
    means, inverses = (flow.stack([s[i] for s in stats]) for i in range(2))
    own_mean, own_var = flow.zeros(3), flow.ones(3)
    whole, inverse = C.batch_norm_gather_stats_with_counts(
        parts[0], means, inverses, own_mean, own_var, 0.3, 1e-5, flow.tensor([8, 16])
    )
    compare([mean, var], [own_mean, own_var])
    outs = [C.batch_norm_elemt(p, *to_flow([w, b]), whole, inverse, 1, 1e-5) for p in parts]
    compare(wanted.detach(), flow.cat(outs))
    d_parts = [to_flow(d[:2]), to_flow(d[2:])]
    pairs = list(zip(d_parts, parts, strict=True))
    sums = [C.batch_norm_backward_reduce(g, p, whole, inverse, 1) for g, p in pairs]
    total, crossed, d_weight, d_bias = (sums[0][i] + sums[1][i] for i in range(4))
    compare([weight.grad, bias.grad], [d_weight, d_bias])
    count = flow.tensor([8, 16])
    d_x = [
        C.batch_norm_backward_elemt(g, p, whole, inverse, to_flow(w), total, crossed, count)
        for g, p in pairs
    ]
    compare(given.grad, flow.cat(d_x))


def test_normalization_with_channels_anywhere(rng: np.random.Generator) -> None:
    x, more, w, b = tensors(rng, (2, 4, 3), (2, 4, 3), (3,), (3,))
    mean, var = torch.zeros(3), torch.ones(3)
    wanted = F.batch_norm(x.transpose(1, 2), mean, var, w, b, True, 0.1, 1e-3).transpose(1, 2)
    own = to_flow([torch.zeros(3), torch.ones(3)])
    found = C.normalization(to_flow(x), *own, *to_flow([w, b]), 2, 1e-3, 0.1, True)
    compare([wanted, mean, var], [found, *own])
    both = C.normalization_add_relu(
        *to_flow([x, more, torch.zeros(3), torch.ones(3), w, b]), 2, 1e-3, 0.1, True
    )
    compare((wanted + more).relu(), both)


def test_steps_of_recurrent_layers(rng: np.random.Generator) -> None:
    x, h, c = tensors(rng, (2, 3), (2, 4), (2, 4))
    for name, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        cell = getattr(torch.nn, f"{name}Cell")(3, 4)
        given = to_flow([p.detach() for p in cell.parameters()])
        if name == "LSTM":
            wanted = [t.detach() for t in cell(x, (h, c))]
            compare(wanted, list(C.lstm_cell(to_flow(x), to_flow([h, c]), *given)))
        else:
            ours = C.gru_cell if name == "GRU" else C.rnn_tanh_cell
            compare(cell(x, h).detach(), ours(*to_flow([x, h]), *given))
        assert given[0].shape[0] == 4 * gates
    compare((x @ x.t() + h @ h.t()).relu(), C.rnn_relu_cell(*to_flow([x, h, x, h])))


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_updates_of_many_parameters(rng: np.random.Generator, scale: float) -> None:
    shapes = [(3,), (2, 2)]
    kinds = (
        (C.multi_tensor_momentum_update, torch.optim.SGD,
         {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, 1),
        (C.multi_tensor_sgd_update, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}, 0),
        (C.multi_tensor_adam_update, torch.optim.AdamW,
         {"lr": 0.1, "weight_decay": 0.01, "eps": 1e-8}, 2),
    )  # fmt: skip
    for update, optimizer, options, states in kinds:
        theirs = [torch.nn.Parameter(t) for t in tensors(rng, *shapes)]
        ours = [to_flow(t.detach()) for t in theirs]
        buffers = [[flow.zeros(*shape) for shape in shapes] for _ in range(states)]
        step = optimizer(theirs, **options)
        for t in range(1, 3):
            grads = tensors(rng, *shapes)
            for p, g in zip(theirs, grads, strict=True):
                p.grad = g * scale
            step.step()
            given = {"learning_rate_val": 0.1, "weight_decay": 0.01, "scale": scale}
            if states == 2:
                given |= {"bias_correction1_val": 1 - 0.9**t, "bias_correction2_val": 1 - 0.999**t}
            update(ours, to_flow(grads), *buffers, **given)
        compare([p.detach() for p in theirs], ours)


def test_gradients_are_clipped_together(rng: np.random.Generator) -> None:
    grads = tensors(rng, (3,), (2, 2))
    params = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads]
    for p, g in zip(params, grads, strict=True):
        p.grad = g.clone()
    ours = to_flow(grads)
    compare(torch.nn.utils.clip_grad_norm_(params, 0.5), C.fused_clip_grad(ours, 0.5))
    compare([p.grad for p in params], ours)


def test_sums_of_segments_and_rows_of_a_table(rng: np.random.Generator) -> None:
    x, table = tensors(rng, (2, 4, 3), (5, 3))
    ids = torch.tensor([1, 0, 1, 3])
    wanted = torch.zeros(2, 5, 3).index_add(1, ids, x)
    compare(wanted, C.unsorted_segment_sum(*to_flow([x, ids]), 1, 5))
    like = to_flow(torch.zeros(2, 5, 3))
    compare(wanted, C.unsorted_segment_sum_like(*to_flow([x, ids]), like, 1))
    own = to_flow(table)
    used = torch.tensor([[0, 3], [3, 1]])
    wanted = torch.nn.functional.embedding(used, table.clone(), max_norm=0.5)
    C.embedding_renorm_(own, to_flow(used), 0.5)
    compare(wanted, own[to_flow(used)])
    compare(table[[2, 4]], own[[2, 4]])


def test_small_ones(rng: np.random.Generator) -> None:
    a, b = tensors(rng, (2, 3, 4), (2, 3, 4))
    compare(
        2 * a @ b.transpose(1, 2), C.batch_matmul(*to_flow([a, b]), transpose_b=True, alpha=2.0)
    )
    assert C.constant([2], 3, dtype=flow.int64).tolist() == [3, 3]
    assert C.tensor_constant([1], flow.tensor(2.5)).tolist() == [2.5]
    assert C.eye_(flow.ones(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert C.expand_dims(flow.ones(2), 0).shape == (1, 2)
    assert C.scatternd(flow.tensor([[1], [1]]), flow.tensor([2.0, 3.0]), [3]).tolist() == [0, 5, 0]
    x = flow.tensor([1.0, 2.0])
    assert C.noncontiguous_binary_op(x, x, "mul", True) is x and x.tolist() == [1, 4]
    C.assign_local_tensor(x, flow.tensor([7.0, 8.0]))
    C.tensor_setitem(x, 0, 9.0)
    assert x.tolist() == [9, 8]
    turned = flow.arange(6).reshape(2, 3).t()
    assert C.contiguous_(turned).is_contiguous() and turned.tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(RuntimeError, match="asked for"):
        C.throw_error(x)
    ema = [flow.ones(2)]
    C.multi_tensor_yolov5_weight_update(ema, [flow.zeros(2)], 0.9)
    assert ema[0].tolist() == pytest.approx([0.9, 0.9])
    assert C.local_all_reduce(x).tolist() == [9, 8]
    assert C.local_reduce(x) is x and C.local_reduce(x, inplace=False) is not x
    assert C.comm_broadcast([x])[0] is x


def test_all_functions_of_tensors_are_there_too() -> None:
    """`flow._C` has the functions of the other surfaces, and its own ones where they differ."""
    assert flow._C.abs is flow.abs and flow._C.conv2d is flow.nn.functional.conv2d
    assert flow._C.relu_ is flow.relu_ and flow._C.rfft is flow.fft.rfft
    assert flow._C.gather is not flow.gather
    assert not hasattr(flow._C, "Module")


def test_one_dim_is_stretched_to_that_of_another_tensor(rng: np.random.Generator) -> None:
    (x,) = tensors(rng, (1, 3))
    like = flow.ones(5, 3, 4)
    compare(x.expand(5, 3), C.broadcast_dim_like(to_flow(x), like, dim=0))
    compare(x.expand(4, 3), C.broadcast_dim_like(to_flow(x), like, 0, like_dim=-1))
    with pytest.raises(ValueError):
        C.broadcast_dim_like(to_flow(x), like, dim=1, like_dim=0)
