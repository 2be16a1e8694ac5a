"""Upstream's fused functions, against the same computed by PyTorch or written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import ArgumentError
from tests.parity.values import compare, to_flow

C = flow._C


def tensors(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in shapes]


def test_mlp_is_its_layers(rng: np.random.Generator) -> None:
    x, w0, b0, w1, b1, more = tensors(rng, (3, 4), (5, 4), (5,), (2, 5), (2,), (3, 2))
    hidden = torch.relu(torch.nn.functional.linear(x, w0, b0))
    wanted = torch.nn.functional.linear(hidden, w1, b1)
    ours = to_flow([x, [w0, w1], [b0, b1]])
    compare(wanted, C.fused_mlp(*ours, True))
    compare(wanted.relu(), C.fused_mlp(*ours, skip_final_activation=False))
    compare(
        wanted,
        C.fused_matmul_bias_add_relu_dropout(
            *ours, skip_final_activation=True, dropout_rate_list=[0.0, 0.0]
        ),
    )
    compare(
        2 * hidden @ w1.t() + b1 + 0.5 * more,
        C.fused_matmul_bias(*to_flow([hidden, w1, b1, more]), 2.0, 0.5),
    )
    layer = flow.nn.FusedMLP(4, [5], 2, skip_final_activation=True)
    for own, value in zip(layer.parameters(), (w0, b0, w1, b1), strict=True):
        own.data.copy_(to_flow(value))
    compare(wanted, layer(to_flow(x)).detach())
    assert [n for n, _ in layer.named_parameters()] == ["weight_0", "bias_0", "weight_1", "bias_1"]
    dropping = flow.nn.FusedMLP(4, [50], 40, [0.5], 0.5)
    assert float((dropping(to_flow(x)) == 0).float().mean()) > 0.5
    assert not (dropping.eval()(to_flow(x)) != dropping(to_flow(x))).any()


@pytest.mark.parametrize("gate", ["none", "sigmoid", "relu", "gelu", "silu"])
def test_glu_gates_one_product_by_another(rng: np.random.Generator, gate: str) -> None:
    x, w, b, v, c = tensors(rng, (3, 4), (5, 4), (5,), (5, 4), (5,))
    act = (lambda y: y) if gate == "none" else getattr(torch.nn.functional, gate)
    linear = torch.nn.functional.linear
    wanted = linear(x, w, b) * act(linear(x, v, c))
    compare(wanted, C.fused_glu(*to_flow([x, w, b, v, c]), gate))
    compare(
        wanted, C.fused_glu(*to_flow([x, torch.cat([w, v]), torch.cat([b, c])]), activation=gate)
    )


def test_products_and_sums_of_lists(rng: np.random.Generator) -> None:
    x, y, w, v, b = tensors(rng, (3, 4), (2, 4), (5, 4), (6, 4), (5,))
    compare([x @ w.t(), y @ v.t()], list(C.grouped_matmul(*to_flow([[x, y], [w, v]]))))
    compare([x @ w.t() + b], list(C.grouped_matmul_bias(*to_flow([[x], [w], [b]]))))
    a, d = tensors(rng, (3, 4), (3, 4))
    compare(3 * (0.5 * a - 2 * d), C.fused_weighted_sum(to_flow([a, d]), [0.5, -2], 3))


def test_norms_of_sums(rng: np.random.Generator) -> None:
    x, gamma, beta, bias, skip = tensors(rng, (3, 6), (6,), (6,), (6,), (3, 6))
    whole = x + bias + 0.7 * skip
    compare(
        torch.nn.functional.layer_norm(whole, (6,), gamma, beta, 1e-5),
        C.skip_layer_norm(*to_flow([x, gamma, beta, bias, skip]), 1e-5, 0.7),
    )
    rms = whole / torch.sqrt((whole**2).mean(-1, keepdim=True) + 1e-5) * gamma
    compare(rms, C.skip_rms_norm(*to_flow([x, gamma, bias, skip]), 1e-5, 0.7))
    plain = x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * gamma
    compare(plain, C.rms_layer_norm(*to_flow([x, gamma]), 1e-6))


def test_scores_are_masked_and_normalized(rng: np.random.Generator) -> None:
    x, bias, summand = tensors(rng, (2, 3, 4, 4), (1, 3, 4, 4), (2, 1, 1, 4))
    mask = torch.from_numpy(rng.random((2, 1, 4, 4)) < 0.7)
    wanted = torch.where(mask, 0.5 * (x + bias), torch.tensor(-100.0)).softmax(-1)
    out, y = C.fused_bias_add_scale_mask_softmax_dropout(
        *to_flow([x, bias, mask]), fill_value=-100.0, scale=0.5, p=0.0
    )
    compare([wanted, wanted], [out, y])
    compare(
        (0.5 * x + summand + bias).softmax(-1),
        C.fused_scale_mask_bias_softmax(*to_flow([x, summand, bias]), 0.5),
    )
    lower = torch.ones(4, 4).tril(1).bool()
    compare(
        torch.where(lower, 3 * x, torch.tensor(9.0)),
        C.fused_scale_tril(to_flow(x), diagonal=1, fill_value=9.0, scale=3.0),
    )


def heads_of(x: torch.Tensor, layout: str) -> torch.Tensor:
    """(B, M, H, K) in a layout without numbers."""
    order = layout.replace("(", "").replace(")", "")
    y = x.permute(tuple("BMHK".index(letter) for letter in order))
    return y.flatten(-2) if "(" in layout else y


@pytest.mark.parametrize("layout", ["BMHK", "BM(HK)", "MBHK", "MB(HK)", "BHMK"])
def test_attention_in_every_layout(rng: np.random.Generator, layout: str) -> None:
    q, k, v = tensors(rng, (2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 4))
    (bias,) = tensors(rng, (2, 3, 5, 7))
    attention = torch.nn.functional.scaled_dot_product_attention
    turned = [t.transpose(1, 2) for t in (q, k, v)]
    given = to_flow([heads_of(t, layout) for t in (q, k, v)])
    keywords = {
        "query": given[0], "query_layout": layout, "query_head_size": 4, "key": given[1],
        "key_layout": layout, "value": given[2], "value_layout": layout, "output_layout": layout,
    }  # fmt: skip
    run = C.fused_multi_head_attention_inference_v2
    wanted = attention(*turned, attn_mask=bias).transpose(1, 2)
    compare(heads_of(wanted, layout), run(**keywords, attn_bias=to_flow(bias)))
    for kind, shift in (("causal_from_top_left", 0), ("causal_from_bottom_right", 2)):
        seen = torch.ones(5, 7).tril(shift).bool()
        wanted = attention(*turned, attn_mask=seen, scale=0.3).transpose(1, 2)
        compare(heads_of(wanted, layout), run(**keywords, attn_mask_type=kind, scale=0.3))


def test_query_key_and_value_lie_side_by_side(rng: np.random.Generator) -> None:
    (packed,) = tensors(rng, (2, 5, 3, 3, 4))  # B M H 3 K
    q, k, v = (t.transpose(1, 2) for t in packed.unbind(3))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
    flat = to_flow(packed.flatten(2))
    compare(wanted, C.fused_multi_head_attention_inference_v2(flat, "BM(H3K)", 4))
    halves = to_flow(packed[:, :, :, 1:].flatten(2))
    compare(
        wanted,
        C.fused_multi_head_attention_inference_v2(
            to_flow(packed[:, :, :, 0]), "BMHK", None, halves, "BM(H2K)"
        ),
    )
    old = C.fused_multi_head_attention_inference(
        *to_flow([t.flatten(2) for t in packed.unbind(3)]), 3
    )
    compare(wanted, old)


@pytest.mark.parametrize("layout", ["(BM)HK", "(BM)(HK)"])
def test_sequences_of_different_lengths_in_a_row(rng: np.random.Generator, layout: str) -> None:
    starts, others, counts = [0, 2, 7, 8], [0, 3, 5, 9], [3, 1, 4]
    q, k, v = tensors(rng, (8, 3, 4), (9, 3, 4), (9, 3, 4))
    (bias,) = tensors(rng, (3, 3, 5, 4))
    given = to_flow([x.flatten(1) if layout == "(BM)(HK)" else x for x in (q, k, v)])
    keywords = {
        "query": given[0], "query_layout": layout, "query_head_size": 4, "key": given[1],
        "key_layout": layout, "value": given[2], "value_layout": layout, "output_layout": layout,
        "query_seq_start": flow.tensor(starts), "key_seq_start": flow.tensor(others),
        "query_max_seq_len": 5, "key_max_seq_len": 4,
    }  # fmt: skip
    for lengths in (None, counts):
        for causal in (False, True):
            wanted = []
            for i in range(3):
                last = others[i + 1] if lengths is None else others[i] + lengths[i]
                rows, columns = slice(starts[i], starts[i + 1]), slice(others[i], last)
                mask = bias[i, :, : rows.stop - rows.start, : last - others[i]]
                if causal:
                    mask = mask.masked_fill(~torch.ones_like(mask).tril().bool(), -math.inf)
                turned = [x.transpose(0, 1) for x in (q[rows], k[columns], v[columns])]
                attention = torch.nn.functional.scaled_dot_product_attention
                wanted.append(attention(*turned, attn_mask=mask).transpose(0, 1))
            whole = torch.cat(wanted)
            found = C.fused_multi_head_attention_inference_v2(
                **keywords,
                attn_bias=to_flow(bias),
                causal=causal,
                key_seq_len=None if lengths is None else flow.tensor(lengths),
            )
            compare(whole.flatten(1) if layout == "(BM)(HK)" else whole, found)
    with pytest.raises(ArgumentError, match="need query_seq_start"):
        C.fused_multi_head_attention_inference_v2(
            *given[:1], layout, 4, key_seq_len=flow.tensor(counts)
        )


def test_causal_is_a_keyword_of_both(rng: np.random.Generator) -> None:
    q, k, v = tensors(rng, (2, 5, 12), (2, 5, 12), (2, 5, 12))
    turned = [x.unflatten(-1, (3, 4)).transpose(1, 2) for x in (q, k, v)]
    for offset in (0, 2):
        seen = torch.ones(5, 5).tril(offset).bool()
        attention = torch.nn.functional.scaled_dot_product_attention
        wanted = attention(*turned, attn_mask=seen).transpose(1, 2).flatten(2)
        given = to_flow([q, k, v])
        old = C.fused_multi_head_attention_inference(
            *given, 3, causal=True, causal_diagonal_offset=offset
        )
        compare(wanted, old)
        new = C.fused_multi_head_attention_inference_v2(
            query=given[0], query_head_size=4, key=given[1], value=given[2], causal=True,
            causal_diagonal_offset=offset,
        )  # fmt: skip
        compare(wanted, new)


def test_past_keys_come_first(rng: np.random.Generator) -> None:
    pk, pv, k, v = tensors(rng, (2, 3, 4, 8), (2, 3, 4, 8), (2, 5, 24), (2, 5, 24))
    found = C.fused_attention_concat_past_key_value(
        past_key=to_flow(pk), past_key_layout="BHMK", past_value=to_flow(pv),
        past_value_layout="BHMK", key=to_flow(k), key_layout="BM(HK)", value=to_flow(v),
        value_layout="BM(HK)", key_head_size=8,
    )  # fmt: skip
    wanted = [
        torch.cat([past, new.reshape(2, 5, 3, 8).transpose(1, 2)], 2)
        for past, new in ((pk, k), (pv, v))
    ]
    compare(wanted, list(found))


@pytest.mark.parametrize("mode", ["plane", "interval"])
@pytest.mark.parametrize("turned", [8, 4])
def test_rotary_embedding_multiplies_by_a_complex_unit(
    rng: np.random.Generator, mode: str, turned: int
) -> None:
    (x,) = tensors(rng, (2, 5, 3, 8))  # B M H K
    ids = torch.from_numpy(rng.integers(0, 9, (2, 1, 5)))
    half = turned // 2
    angles = ids[:, 0, :, None] * 100.0 ** (-torch.arange(half) / half)
    unit = torch.polar(torch.ones_like(angles), angles)[:, :, None]
    if mode == "plane":
        a, b = x[..., :half], x[..., half:turned]
    else:
        a, b = x[..., 0:turned:2], x[..., 1:turned:2]
    z = torch.complex(a, b) * unit
    parts = (
        torch.cat([z.real, z.imag], -1) if mode == "plane" else torch.view_as_real(z).flatten(-2)
    )
    wanted = torch.cat([parts, x[..., turned:]], -1)
    found = C.fused_apply_rotary_emb(
        to_flow(x),
        position_ids=to_flow(ids),
        x_layout="BMHK",
        base=100.0,
        rotary_size=turned,
        mode=mode,
    )
    compare(wanted, found)
    table = torch.arange(9)[:, None] * 100.0 ** (-torch.arange(half) / half)
    table = torch.cat([table, table], -1) if mode == "plane" else table.repeat_interleave(2, -1)
    given = to_flow([table.cos(), table.sin()])
    again = C.fused_apply_rotary_emb(
        to_flow(x.flatten(2)), cos=given[0], sin=given[1], position_ids=to_flow(ids),
        x_layout="BM(HK)", k_size=8, rotary_size=turned, mode=mode, output_layout="BHMK",
    )  # fmt: skip
    compare(wanted.transpose(1, 2), again)


def test_attention_of_one_projection(rng: np.random.Generator) -> None:
    (h,) = tensors(rng, (5, 2, 3 * 3 * 4))
    q, k, v = h.reshape(5, 2, 3, 3, 4).permute(3, 1, 2, 0, 4)
    scores, value = C.fused_self_attention(to_flow(h), 4, 0.25)
    compare([0.25 * q @ k.transpose(-1, -2), v], [scores, value])
    parts = C.fused_codegeex_qkv_reshape(*to_flow([h, h, h]), 3)
    compare([h.reshape(5, 2, 3, 12)] * 3, list(parts))


def test_complete_iou_of_two_boxes() -> None:
    one, two = (2.0, 3.0, 2.0, 4.0), (3.0, 4.0, 4.0, 2.0)  # centre x, y, width, height
    given = [flow.tensor([n]) for n in (*one, *two)]
    _, _, w1, h1, _, _, w2, h2 = given
    edges = C.fused_get_boundding_boxes_coord(*given)
    assert [e.item() for e in edges] == [1, 3, 1, 5, 1, 5, 3, 5]
    l1, r1, t1, d1, l2, r2, t2, d2 = edges
    sides = (l1, r1, l2, r2, t1, d1, t2, d2)
    area = C.fused_get_intersection_area(*sides)
    assert area.item() == 4
    iou = C.fused_get_iou(w1, h1, w2, h2, area, 1e-9)
    assert iou.item() == pytest.approx(4 / 12)
    diagonal = C.fused_get_convex_diagonal_squared(*sides, 1e-9)
    assert diagonal.item() == pytest.approx(4**2 + 4**2)
    distance = C.fused_get_center_dist(*sides)
    assert distance.item() == pytest.approx(1 + 1)
    shape = C.fused_get_ciou_diagonal_angle(w1, h1, w2, h2, 1e-9)
    v = 4 / math.pi**2 * (math.atan(2) - math.atan(0.5)) ** 2
    assert shape.item() == pytest.approx(v)
    result, weight = C.fused_get_ciou_result(shape, iou, distance, diagonal, 1e-9)
    alpha = v / (v - 4 / 12 + 1)
    assert weight.item() == pytest.approx(alpha)
    assert result.item() == pytest.approx(4 / 12 - (2 / 32 + v * alpha))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_of_few_bits(rng: np.random.Generator, bits: int, symmetric: bool) -> None:
    kind = np.int8 if symmetric else np.uint8
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if symmetric else (0, 2**bits)
    whole = rng.integers(low, high, (6, 8)).astype(kind)
    packed = whole if bits == 8 else (whole[:, 0::2] << 4) | (whole[:, 1::2] & 15)
    scale, zero = (rng.normal(size=(6, 2)).astype(np.float32) for _ in range(2))
    wanted = whole * scale.repeat(4, 1) + (0 if symmetric else zero.repeat(4, 1))
    given = [flow.tensor(packed.astype(kind)), flow.tensor(scale)]
    given.append(None if symmetric else flow.tensor(zero))
    keywords = {"num_bits": bits, "symmetric": symmetric, "group_dim": -1, "group_size": 4}
    compare(torch.from_numpy(wanted.astype(np.float32)), C.groupwise_dequantize(*given, **keywords))
    (x,) = tensors(rng, (3, 8))
    product = C.fused_linear_with_groupwise_quantized_weight(to_flow(x), *given, **keywords)
    compare(x @ torch.from_numpy(wanted.astype(np.float32)).t(), product)


def test_the_weight_of_a_complete_iou_is_a_constant() -> None:
    v, iou, rho2, c2 = np.random.default_rng(2).uniform(0.1, 1, (4, 5, 1))
    xs = [flow.tensor(a, requires_grad=True) for a in (v, iou, rho2, c2)]
    C.fused_get_ciou_result(*xs, 1e-7)[0].sum().backward()
    alpha = v / (v - iou + 1 + 1e-7)
    for x, wanted in zip(xs, (-alpha, np.ones_like(v), -1 / c2, rho2 / c2**2), strict=True):
        np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-12)
