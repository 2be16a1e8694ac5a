"""Times the CPU kernels beside PyTorch's, at the sizes of a small GPT and of a digits classifier.

    python benchmarks/kernels.py [--rounds 30] [--threads 2] [--json results.json]

Both sides run in this process on the same arrays, in turns, and must agree before anything is
timed. The number shown is the shortest of the rounds (other programs only add time); ratio is
PyTorch's time over ours, so above 1 we are faster.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import oneflow.ops  # noqa: F401  (declares all)
from oneflow.core.dtype import dtype_of
from oneflow.core.op import find_op, infer_types
from oneflow.core.rng import Rng
from oneflow.core.tensor_type import TensorType
from oneflow.kernels import registry
from oneflow.kernels.threads import set_limit

Array = np.ndarray[Any, Any]
BATCH, CONTEXT, WIDTH, HEADS, LETTERS = 12, 64, 128, 4, 96
TOKENS = BATCH * CONTEXT
REST_S = 0.01  # before each turn: idle threads of the other side still spin for some milliseconds
_RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape).astype(np.float32)


@dataclass
class Case:
    """name: shown.  ours, theirs: run one call.  results: of both, to compare (None: not
    comparable).
    """

    name: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    results: Callable[[], tuple[Array, Array]] | None


def bind(name: str, *inputs: Array, **attrs: Any) -> tuple[Callable[[], Any], list[Array]]:
    """A call of the kernel that is selected for these inputs, with its buffers made beforehand; and
    its outputs.
    """
    op = find_op(name)
    attrs = op.defaults | attrs
    types = tuple(TensorType(x.shape, dtype_of(x.dtype)) for x in inputs)
    out_types = infer_types(op, types, attrs)
    outs = [np.empty(t.shape, t.dtype.np) for t in out_types]
    for out, source in op.mutates.items():
        outs[out] = inputs[source]
    chosen = registry.select(name, "cpu", types, max(t.numel for t in (*types, *out_types)))
    spare = chosen.workspace(types, attrs) if chosen.workspace else ()
    extra: dict[str, Any] = {}
    if op.is_random:
        extra["rng"] = Rng(attrs["seed"], outs[0].shape, (0,) * outs[0].ndim)
    buffers = [np.empty(t.shape, t.dtype.np) for t in spare]

    function = chosen.bound(types, attrs)

    def call() -> None:
        function(np, *outs, *inputs, *buffers, **attrs, **extra)

    return call, outs


def case(label: str, theirs: Callable[..., Any], name: str, *inputs: Array, **attrs: Any) -> Case:
    """theirs: of the same inputs as torch tensors; its result is compared with our first output."""
    ours, outs = bind(name, *inputs, **attrs)
    tensors = [torch.from_numpy(x) for x in inputs]

    def results() -> tuple[Array, Array]:
        ours()
        return outs[0], theirs(*tensors).numpy()

    return Case(label, ours, lambda: theirs(*tensors), results)


def product_cases() -> list[Case]:
    x, wide = normal(TOKENS, WIDTH), normal(TOKENS, 4 * WIDTH)
    up, bias = normal(4 * WIDTH, WIDTH), normal(4 * WIDTH)
    heads = (BATCH, HEADS, CONTEXT, WIDTH // HEADS)
    q, k = normal(*heads), normal(*heads)
    split = normal(BATCH, CONTEXT, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)
    return [
        case("linear 128->512", F.linear, "linear", x, up, bias),
        case("linear d_x", lambda d, w: d @ w, "matmul", wide, up),
        case(
            "linear d_w", lambda x, d: d.T @ x, "matmul_weight_grad", x, wide, transpose=True
        ),
        case("bias gradient", lambda d: d.sum(0), "sum_rows", wide),
        case("scores q k^T", lambda q, k: q @ k.mT, "matmul", q, k, transpose_b=True),
        case("scores, heads in place", lambda q, k: q @ k.mT, "matmul", split, split,
             transpose_b=True),
    ]  # fmt: skip


def attention_cases() -> list[Case]:
    scores, d = normal(BATCH, HEADS, CONTEXT, CONTEXT), normal(BATCH, HEADS, CONTEXT, CONTEXT)
    soft = torch.softmax(torch.from_numpy(scores), -1).numpy()
    future = torch.full((CONTEXT, CONTEXT), -1e9).triu(1)
    scale = (WIDTH // HEADS) ** -0.5

    def softmax_grad(d: Any, y: Any) -> Any:
        return torch._softmax_backward_data(d, y, -1, torch.float32)

    return [
        case("softmax", lambda x: torch.softmax(x, -1), "softmax", scores),
        case("softmax gradient", softmax_grad, "softmax_grad", d, soft, scale=1.0),
        case("scale, mask, softmax", lambda x: torch.softmax(x * scale + future, -1),
             "causal_softmax", scores, scale=scale),
    ]  # fmt: skip


def pointwise_cases() -> list[Case]:
    x, d = normal(TOKENS, 4 * WIDTH), normal(TOKENS, 4 * WIDTH)
    result = []
    for form in ("none", "tanh"):
        result += [
            case(f"gelu {form}", lambda x, form=form: F.gelu(x, approximate=form),
                 "gelu", x, approximate=form),
            case(f"gelu {form} gradient",
                 lambda d, x, form=form: torch.ops.aten.gelu_backward(d, x, approximate=form),
                 "gelu_grad", d, x, approximate=form),
        ]  # fmt: skip
    ours, _ = bind("dropout", x, p=0.1, seed=1)
    tensor = torch.from_numpy(x)
    result.append(Case("dropout", ours, lambda: F.dropout(tensor, 0.1), None))
    return result


def norm_and_loss_cases() -> list[Case]:
    x, d, gamma, beta = normal(TOKENS, WIDTH), normal(TOKENS, WIDTH), normal(WIDTH), normal(WIDTH)
    _, mean, inv = torch.native_layer_norm(torch.from_numpy(x), (WIDTH,), None, None, 1e-5)
    statistics = mean.numpy().reshape(-1), inv.numpy().reshape(-1)
    logits, labels = normal(TOKENS, LETTERS), _RANDOM.integers(0, LETTERS, TOKENS)
    d_loss = np.full(TOKENS, 1 / TOKENS, np.float32)
    log_soft = torch.log_softmax(torch.from_numpy(logits), -1)
    total = torch.tensor(float(TOKENS))
    lse = torch.logsumexp(torch.from_numpy(logits), -1).numpy()

    def norm_grad(d: Any, x: Any, mean: Any, inv: Any, gamma: Any) -> Any:
        column = (TOKENS, 1)
        return torch.ops.aten.native_layer_norm_backward(
            d, x, (WIDTH,), mean.view(column), inv.view(column), gamma, gamma, [True] * 3
        )[0]

    def loss_grad(d: Any, logits: Any, labels: Any, lse: Any) -> Any:
        back = torch.ops.aten.nll_loss_backward(
            torch.tensor(1.0), log_soft, labels, None, 1, -100, total
        )
        return torch._log_softmax_backward_data(back, log_soft, -1, torch.float32)

    return [
        case("layer norm", lambda x, g, b: F.layer_norm(x, (WIDTH,), g, b), "layer_norm",
             x, gamma, beta, begin_axis=1, eps=1e-5),
        case("layer norm gradients", norm_grad, "layer_norm_grad", d, x, *statistics, gamma,
             begin_axis=1),
        case("cross entropy", lambda x, t: F.cross_entropy(x, t, reduction="none"),
             "sparse_softmax_cross_entropy", logits, labels),
        case("cross entropy gradient", loss_grad, "sparse_softmax_cross_entropy_grad",
             d_loss, logits, labels, lse),
    ]  # fmt: skip


def update_cases() -> list[Case]:
    """Of one parameter as large as the whole small GPT, and of one of its weights."""
    result = []
    for size in (818_000, 4 * WIDTH * WIDTH):
        for label, name, make, num_states, attrs in (
            ("AdamW", "adam_update", torch.optim.AdamW, 2,
             {"weight_decay": 0.01, "decoupled": True}),
            ("momentum", "momentum_update", torch.optim.SGD, 1, {"momentum": 0.9}),
            ("SGD", "sgd_update", torch.optim.SGD, 0, {}),
        ):  # fmt: skip
            settings = {k: v for k, v in attrs.items() if k != "decoupled"}
            result.append(_update_case(f"{label} {size}", name, make, size, num_states, attrs,
                                       settings))  # fmt: skip
    return result


def _update_case(
    label: str, name: str, make: Any, size: int, num_states: int, attrs: Any, settings: Any
) -> Case:
    start, grad = normal(size), normal(size)
    param = torch.nn.Parameter(torch.from_numpy(start.copy()))
    param.grad = torch.from_numpy(grad)
    optimizer = make([param], lr=0.001, fused=True, **settings)
    own = start.copy()
    scalars = [np.array(0.001)] + ([np.array(1)] if name == "adam_update" else [])
    states = [np.zeros(size, np.float32) for _ in range(num_states)]
    ours, _ = bind(name, own, grad, *states, *scalars, **attrs)

    def results() -> tuple[Array, Array]:
        ours()
        optimizer.step()
        return own, param.detach().numpy()

    return Case(label, ours, optimizer.step, results)


def _conv_cases(label: str, x: Array, w: Array, stride: int) -> list[Case]:
    """A convolution with padding 1 and its two gradients."""
    d = F.conv2d(torch.from_numpy(x), torch.from_numpy(w), None, stride, 1).numpy().copy()
    d[...] = normal(*d.shape)
    one = {"stride": (stride,) * 2, "padding": (1, 1), "dilation": (1, 1), "groups": 1}

    def gradient(d: Any, x: Any, w: Any, which: int) -> Any:
        wanted = [which == 0, which == 1, False]
        sizes = [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1
        return torch.ops.aten.convolution_backward(d, x, w, None, *sizes, wanted)[which]

    x_there, w_there = torch.from_numpy(x), torch.from_numpy(w)
    return [
        case(f"conv {label}", lambda x, w: F.conv2d(x, w, None, stride, 1), "conv", x, w, **one),
        case(f"conv {label} d_x", lambda d, w: gradient(d, x_there, w, 0), "conv_data_grad", d, w,
             spatial=x.shape[2:], **one),
        case(f"conv {label} d_w", lambda d, x: gradient(d, x, w_there, 1), "conv_filter_grad",
             d, x, kernel=w.shape[2:], **one),
    ]  # fmt: skip


def _pool_cases(x: Array) -> list[Case]:
    window = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
    there = torch.from_numpy(x)
    out, where = F.max_pool2d(there, 2, return_indices=True)
    d, spatial, ones = normal(*out.shape), x.shape[2:], (1, 1)

    def max_grad(d: Any, indices: Any) -> Any:
        return torch.ops.aten.max_pool2d_with_indices_backward(
            d, there, [2, 2], [2, 2], [0, 0], [1, 1], False, indices
        )

    def avg_grad(d: Any) -> Any:
        return torch.ops.aten.avg_pool2d_backward(
            d, there, [2, 2], [2, 2], [0, 0], False, True, None
        )

    return [
        case("max pool", lambda x: F.max_pool2d(x, 2, return_indices=True)[0], "max_pool", x,
             dilation=ones, **window),
        case("max pool gradient", max_grad, "max_pool_grad", d, where.numpy(), spatial=spatial,
             dilation=ones, **window),
        case("avg pool", lambda x: F.avg_pool2d(x, 2), "avg_pool", x, **window),
        case("avg pool gradient", avg_grad, "avg_pool_grad", d, spatial=spatial, **window),
    ]  # fmt: skip


def image_cases() -> list[Case]:
    """A digits classifier: 96 images of 8 x 8, and the half of them that each of two ranks has."""
    whole, half = normal(96, 16, 8, 8), normal(48, 16, 8, 8)
    w = normal(32, 16, 3, 3)
    return [
        *_conv_cases("1->16", normal(96, 1, 8, 8), normal(16, 1, 3, 3), 1),
        *_conv_cases("16->32 by 2", whole, w, 2),
        *_conv_cases("16->32 by 2, half", half, w, 2),
        case("conv bias gradient", lambda d: d.sum((0, 2, 3)), "reduce_sum", whole,
             dims=(0, 2, 3)),
        *_pool_cases(whole),
        case("digits linear 64->128", F.linear, "linear", normal(64, 64), normal(128, 64),
             normal(128)),
        case("digits softmax 64x10", lambda x: torch.softmax(x, -1), "softmax", normal(64, 10)),
    ]  # fmt: skip


def shortest_seconds(sides: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Shortest time of each side, the least disturbed; the sides take turns, so that a busy moment
    of the machine hits both.
    """
    repeats = []
    for side in sides:
        begin = time.perf_counter()
        side()
        repeats.append(max(1, int(0.002 / (time.perf_counter() - begin + 1e-9))))
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, repeat, taken in zip(sides, repeats, times, strict=True):
            time.sleep(REST_S)
            side()
            begin = time.perf_counter()
            for _ in range(repeat):
                side()
            taken.append((time.perf_counter() - begin) / repeat)
    return [min(taken) for taken in times]


def check(one: Case) -> None:
    """Raises SystemExit unless both sides agree to float32 accuracy."""
    if one.results is None:
        return
    got, want = one.results()
    error = float(np.abs(got - want).max() / max(1e-6, float(np.abs(want).max())))
    if not error < 1e-5:
        raise SystemExit(f"{one.name}: the two sides differ by {error:.1e} of the largest value")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    set_limit(args.threads)
    groups = (product_cases, attention_cases, pointwise_cases, norm_and_loss_cases, update_cases,
              image_cases)  # fmt: skip
    rows = []
    print(f"{'kernel':28s} {'ours us':>9s} {'torch us':>9s} {'ratio':>6s}")
    with torch.no_grad():
        for one in (c for group in groups for c in group()):
            check(one)
            ours, theirs = shortest_seconds([one.ours, one.theirs], args.rounds)
            rows.append({"kernel": one.name, "ours_s": ours, "torch_s": theirs})
            print(f"{one.name:28s} {ours * 1e6:9.1f} {theirs * 1e6:9.1f} {theirs / ours:6.2f}")
    if args.json:
        args.json.write_text(json.dumps({"threads": args.threads, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
