"""Layers of 8-bit integers beside the same layers of float32, and PyTorch's of both.

    python benchmarks/integer.py [--threads 2] [--rounds 7] [--json FILE]

`of float32` is the float layer's time over that of the integers: above 1 the integers are faster.
Rounding the input is part of their time. PyTorch's integers are `torch.ops.quantized` of its own
engine (x86 or fbgemm), which gives 8-bit results and reads 8-bit inputs: that is less to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from warnings import catch_warnings, simplefilter

import measure
import numpy as np
from measure import arguments, in_turns, paired, report

DENSE = [
    (1, 1024, 1024), (1, 4096, 4096), (16, 1024, 1024), (64, 512, 512), (128, 1024, 1024),
    (256, 768, 3072), (128, 4096, 4096),
]  # fmt: skip
"""(rows, inputs, outputs)."""

CONVOLUTIONS = [
    (1, 3, 224, 64, 7, 2, 1), (1, 64, 56, 64, 3, 1, 1), (1, 64, 56, 256, 1, 1, 1),
    (1, 128, 28, 128, 3, 1, 1), (1, 256, 14, 256, 3, 1, 1), (1, 512, 7, 512, 3, 1, 1),
    (8, 64, 56, 64, 3, 1, 1), (1, 128, 56, 128, 3, 1, 128),
]  # fmt: skip
"""(samples, channels, height and width, outputs, window, stride, groups)."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()

    import torch

    import oneflow as flow

    torch.set_num_threads(args.threads)
    flow.set_num_threads(args.threads)
    measure.REST_S = 0.12  # idle threads of BLAS spin for a tenth of a second
    rows = []
    with flow.no_grad(), torch.no_grad(), catch_warnings():
        simplefilter("ignore")  # that PyTorch's quantized tensors will go
        for rows_, columns, outs in DENSE:
            layer = flow.nn.QatLinear(columns, outs, weight_quant_per_layer=False)
            name = f"linear {rows_} x {columns} x {outs}"
            rows.append(_row(flow, torch, name, layer, (rows_, columns), args.rounds))
        for n, c, size, outs, window, stride, groups in CONVOLUTIONS:
            given = (c, outs, window, stride, window // 2, 1, groups)
            layer = flow.nn.QatConv2d(*given, weight_quant_per_layer=False)
            name = f"conv {n} x {c} x {size}, {outs} of {window}, {groups} groups"
            rows.append(_row(flow, torch, name, layer, (n, c, size, size), args.rounds))
    report(f"{args.threads} threads", rows, args.json)


def _row(
    flow: Any, torch: Any, name: str, layer: Any, shape: tuple[int, ...], rounds: int
) -> dict[str, Any]:
    x = flow.randn(*shape)
    layer(x)
    made = flow.nn.qat.convert(layer.eval())
    _compare(made(x), layer(x))
    is_dense = len(shape) == 2
    plain: Any = flow.nn.Linear if is_dense else flow.nn.Conv2d
    sides: dict[str, Callable[[], Any]] = {
        "int8": lambda: made(x),
        "float32": lambda: plain.forward(layer, x),
        "torch": _floats(torch, layer, x, is_dense),
        "torch int8": _integers(torch, made, layer, x, is_dense),
    }
    times = in_turns(sides, rounds, warm_up=2, repeat=3)
    found = {side: paired(times, "int8", side) for side in list(sides)[1:]}
    row: dict[str, Any] = {"layer": name, "ms": found["torch"]["ours_s"] * 1e3}
    return row | {f"of {side}": one["ratio"] for side, one in found.items()}


def _compare(found: Any, wanted: Any) -> None:
    if not np.allclose(found.numpy(), wanted.numpy(), atol=1e-5 * wanted.abs().max().item()):
        raise SystemExit("integers and rounded floats do not agree")


def _parameters(torch: Any, layer: Any) -> tuple[Any, Any]:
    return tuple(torch.from_numpy(p.detach().numpy()) for p in (layer.weight, layer.bias))  # type: ignore[return-value]


def _floats(torch: Any, layer: Any, x: Any, is_dense: bool) -> Callable[[], Any]:
    given, (w, b) = torch.from_numpy(x.numpy()), _parameters(torch, layer)
    if is_dense:
        return lambda: torch.nn.functional.linear(given, w, b)
    geometry = layer.stride, layer.padding, layer.dilation, layer.groups
    return lambda: torch.nn.functional.conv2d(given, w, b, *geometry)


def _integers(torch: Any, made: Any, layer: Any, x: Any, is_dense: bool) -> Callable[[], Any]:
    """PyTorch's product of integers, of an input that is rounded in the time, too."""
    given, (w, b) = torch.from_numpy(x.numpy()), _parameters(torch, layer)
    scales = torch.from_numpy(made.scales.numpy()).double()
    zeros = torch.zeros(len(w), dtype=torch.int64)
    weight = torch.quantize_per_channel(w, scales, zeros, 0, torch.qint8)
    unit, ops = float(made.unit) * 1.01, torch.ops.quantized

    def rounded() -> Any:
        return torch.quantize_per_tensor(given, unit, 128, torch.quint8)

    if is_dense:
        packed = ops.linear_prepack(weight, b)
        return lambda: ops.linear(rounded(), packed, 0.05, 128).dequantize()
    geometry = [list(v) for v in (layer.stride, layer.padding, layer.dilation)]
    packed = ops.conv2d_prepack(weight, b, *geometry, layer.groups)
    return lambda: ops.conv2d(rounded(), packed, 0.05, 128).dequantize()


if __name__ == "__main__":
    main()
