"""Kernels and whole training steps on several threads and on one, in turns.

    python benchmarks/threads.py [--rounds 21] [--threads 2] [--models gpt,gpt6x384,resnet18,...]
        [--ops conv,norm] [--json FILE]

ratio: time of one thread over that of several, the median of the pairs. cpu: processor time of
several over that of one. Kernels have the sizes of ResNet-50 (8 images of 224 x 224) and of a GPT
of 6 layers and width 384 (16 texts of 256), and below them sizes that one thread is to do alone.
Results of both numbers of threads have to agree.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from measure import arguments, report
from models import MODELS
from train_step import Mode, Ours

from kernels import bind, normal
from oneflow.kernels.threads import set_limit

TOKENS, WIDTH, HEADS, CONTEXT = 16 * 256, 384, 6, 256
TURN_S = 0.02
"""A turn repeats shorter calls."""


@dataclass(frozen=True)
class Case:
    """A call. results: the arrays it writes, or None where they change from call to call."""

    group: str
    name: str
    call: Callable[[], Any]
    results: list[np.ndarray[Any, Any]]


def kernel(group: str, label: str, name: str, *inputs: Any, **attrs: Any) -> Case:
    call, outs = bind(name, *inputs, **attrs)
    return Case(group, label, call, outs)


def convolutions() -> Iterator[Case]:
    for label, channels, outs, side, kernel_size, stride, groups in (
        ("7x7 by 2, 3->64", 3, 64, 224, 7, 2, 1),
        ("1x1, 64->256 of 56", 64, 256, 56, 1, 1, 1),
        ("3x3, 64 of 56", 64, 64, 56, 3, 1, 1),
        ("3x3 by 2, 128 of 56", 128, 128, 56, 3, 2, 1),
        ("3x3, 256 of 14", 256, 256, 14, 3, 1, 1),
        ("1x1, 1024->256 of 14", 1024, 256, 14, 1, 1, 1),
        ("1x1 by 2, 512->1024", 512, 1024, 28, 1, 2, 1),
        ("3x3, 512 of 7", 512, 512, 7, 3, 1, 1),
        ("3x3, 32 groups, 128 of 56", 128, 128, 56, 3, 1, 32),
        ("3x3 by 2, 32 groups, 256 of 56", 256, 256, 56, 3, 2, 32),
        ("3x3 depthwise, 72 of 56", 72, 72, 56, 3, 1, 72),
        ("5x5 depthwise, 960 of 7", 960, 960, 7, 5, 1, 960),
        ("7x7 depthwise, 192 of 28", 192, 192, 28, 7, 1, 192),
    ):
        x = normal(8, channels, side, side)
        w = normal(outs, channels // groups, kernel_size, kernel_size)
        padding = kernel_size // 2
        end = (side + 2 * padding - kernel_size) // stride + 1
        d = normal(8, outs, end, end)
        one: dict[str, Any] = {"stride": (stride,) * 2, "padding": (padding,) * 2}
        one |= {"dilation": (1, 1), "groups": groups}
        yield kernel("conv", label, "conv", x, w, **one)
        if channels > 3:
            yield kernel(
                "conv", f"{label}, d_x", "conv_data_grad", d, w, spatial=x.shape[2:], **one
            )
        yield kernel("conv", f"{label}, d_w", "conv_filter_grad", d, x, kernel=w.shape[2:], **one)


def products() -> Iterator[Case]:
    x, wide, up = normal(TOKENS, WIDTH), normal(TOKENS, 4 * WIDTH), normal(4 * WIDTH, WIDTH)
    q = normal(16, HEADS, CONTEXT, WIDTH // HEADS)
    yield kernel("product", "linear 384->1536", "linear", x, up, normal(4 * WIDTH))
    yield kernel("product", "linear d_x", "matmul", wide, up)
    yield kernel("product", "linear d_w", "matmul_weight_grad", x, wide, transpose=True)
    yield kernel("product", "scores", "matmul", q, q, transpose_b=True)


def norms() -> Iterator[Case]:
    for channels, side in ((64, 112), (256, 56), (512, 28), (2048, 7)):
        x, label = normal(8, channels, side, side), f"{channels} of {side}"
        d, mean, scale = normal(*x.shape), normal(channels), normal(channels)
        count = x.size // channels
        sums = [a.astype(np.float64) for a in (normal(channels), normal(channels))]
        affine = normal(channels), normal(channels)
        yield kernel("norm", f"batch sums, {label}", "batch_sums", x)
        yield kernel(
            "norm", f"batch apply, {label}", "batch_norm_apply", x, mean, scale, *affine,
            count=count,
        )  # fmt: skip
        yield kernel("norm", f"batch d sums, {label}", "batch_norm_grad_sums", d, x, mean, scale)
        yield kernel(
            "norm", f"batch d_x, {label}", "batch_norm_grad_apply", d, x, mean, scale, *sums,
            affine[0], count=count,
        )  # fmt: skip
    x, d, w = normal(TOKENS, WIDTH), normal(TOKENS, WIDTH), normal(WIDTH)
    mean, inv = x.mean(1), 1 / x.std(1)
    yield kernel("norm", "layer", "layer_norm", x, w, w, begin_axis=1, eps=1e-5)
    yield kernel("norm", "layer, gradient", "layer_norm_grad", d, x, mean, inv, w, begin_axis=1)


def others() -> Iterator[Case]:
    scores = normal(16, HEADS, CONTEXT, CONTEXT)
    wide, d = normal(TOKENS, 4 * WIDTH), normal(TOKENS, 4 * WIDTH)
    logits, labels = normal(TOKENS, 512), np.arange(TOKENS) % 512
    image = normal(8, 64, 112, 112)
    window = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
    yield kernel("rows", "softmax", "softmax", scores)
    yield kernel("rows", "softmax, gradient", "softmax_grad", scores, abs(scores), scale=1.0)
    yield kernel("rows", "causal softmax", "causal_softmax", scores, scale=0.1)
    yield kernel("rows", "cross entropy", "sparse_softmax_cross_entropy", logits, labels)
    yield kernel("elementwise", "gelu", "gelu", wide, approximate="none")
    yield kernel("elementwise", "gelu, gradient", "gelu_grad", d, wide, approximate="none")
    yield kernel("elementwise", "add", "add", wide, d)
    yield kernel("elementwise", "relu", "relu", image)
    yield kernel("elementwise", "dropout", "dropout", wide, p=0.1, seed=1)
    yield kernel("elementwise", "transposed", "gelu", wide.T, approximate="none")
    yield kernel("windows", "max pool", "max_pool", image, **window)
    yield kernel("sums", "bias gradient", "sum_rows", wide)
    yield kernel("sums", "running", "cumsum", wide, dim=1)
    yield kernel("sort", "sort", "sort", logits, dim=1, descending=False)
    yield kernel("sort", "topk", "topk", logits, k=10, dim=1, largest=True)
    yield kernel("sort", "sort of one row", "sort", logits.reshape(-1), dim=0, descending=False)
    way = {"mode": "linear", "factor": 0.0, "align_corners": False, "antialias": False}
    for label, dim in (("rows", 2), ("columns", 3)):
        yield kernel("resize", f"{label} of 112 to 224", "resize", image, dim=dim, size=224, **way)
    yield kernel("resize", "means of areas", "adaptive_avg_pool", image, output_size=(50, 50))
    for label, rows in (("8 K", 32), ("64 K", 256)):
        x = normal(rows, 256)
        yield kernel("small", f"gelu of {label}", "gelu", x, approximate="none")
        yield kernel("small", f"softmax of {label}", "softmax", x)


def steps(names: str) -> Iterator[Case]:
    for name in filter(None, names.split(",")):
        side = Ours(name, Mode(), "graph")
        yield Case("step", name, side.step, [])


def measure(case: Case, threads: int, rounds: int) -> dict[str, Any]:
    """One row. Raises SystemExit if the results depend on the number of threads."""
    found: list[list[np.ndarray[Any, Any]]] = []
    for count in (1, threads):
        set_limit(count)
        case.call()
        found.append([out.copy() for out in case.results])
    begin = time.perf_counter()
    case.call()
    repeat = max(1, int(TURN_S / (time.perf_counter() - begin)))
    for one, other in zip(*found, strict=True):
        if not np.allclose(one, other, 1e-4, 1e-5 * abs(one).max(), equal_nan=True):
            raise SystemExit(f"{case.name}: results depend on the number of threads")
    times: dict[int, list[tuple[float, float]]] = {1: [], threads: []}
    for _ in range(rounds):
        for count, taken in times.items():
            set_limit(count)
            case.call()
            begin, used = time.perf_counter(), time.process_time()
            for _ in range(repeat):
                case.call()
            end, spent = time.perf_counter() - begin, time.process_time() - used
            taken.append((end / repeat, spent / repeat))
    pairs = list(zip(times[1], times[threads], strict=True))
    return {
        "kind": case.group,
        "what": case.name,
        "one_us": statistics.median(a[0] for a, _ in pairs) * 1e6,
        "several_us": statistics.median(b[0] for _, b in pairs) * 1e6,
        "ratio": statistics.median(a[0] / b[0] for a, b in pairs),
        "cpu": statistics.median(b[1] / a[1] for a, b in pairs),
    }


GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "conv": convolutions, "product": products, "norm": norms, "other": others
}  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ops", default=",".join(GROUPS))
    parser.add_argument("--models", default="mlp,cnn,gpt,gpt6x384,lstm,resnet18x96")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    unknown = [n for n in filter(None, args.models.split(",")) if n not in MODELS]
    if unknown:
        raise SystemExit(f"no models: {', '.join(unknown)}")
    cases = [c for name in filter(None, args.ops.split(",")) for c in GROUPS[name]()]
    rows = [measure(case, args.threads, args.rounds) for case in cases]
    rows += [measure(case, args.threads, args.rounds) for case in steps(args.models)]
    report(f"{args.threads} threads over one", rows, args.json)


if __name__ == "__main__":
    main()
