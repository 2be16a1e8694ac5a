"""Products of matrices of the models' shapes: ours, OpenBLAS, MKL and PyTorch beside the peak.

    python benchmarks/products.py [--threads 2] [--json FILE]

GFLOP/s, the best of the turns; the peak is that of multiply-adds of vectors in registers. MKL takes
part where `pip install mkl` has put it. Results agree to 1e-5 of the sizes of their summands.
"""

from __future__ import annotations

import os
import statistics
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from measure import arguments, in_turns, report

# Name, how many, m, k, n, and how the operands lie: n by rows, t by columns.
SHAPES = [
    ("GPT 6x384, q k v", 1, 1024, 384, 1152, "nt"),
    ("projection", 1, 1024, 384, 384, "nt"),
    ("MLP up", 1, 1024, 384, 1536, "nt"),
    ("MLP down", 1, 1024, 1536, 384, "nt"),
    ("d weight of up", 1, 1536, 1024, 384, "tn"),
    ("d input of q k v", 1, 1024, 1152, 384, "nn"),
    ("head", 1, 1024, 384, 65, "nt"),
    ("scores", 24, 256, 64, 256, "nt"),
    ("scores times v", 24, 256, 256, 64, "nn"),
    ("GPT 4x128, MLP up", 1, 768, 128, 512, "nt"),
    ("d weight of up", 1, 512, 768, 128, "tn"),
    ("LSTM, all steps", 1, 1000, 128, 512, "nt"),
    ("LSTM, a step", 1, 20, 128, 512, "nt"),
    ("ResNet, 1 x 1, 56 x 56", 1, 64, 256, 3136, "nn"),
    ("ResNet, windows", 1, 32, 576, 2304, "nn"),
    ("square", 1, 1024, 1024, 1024, "nn"),
    ("MLP of digits", 1, 64, 64, 128, "nt"),
    ("a token, 512 to 2048", 1, 1, 512, 2048, "nt"),
    ("a token, 768 to 3072", 1, 1, 768, 3072, "nn"),
    ("eight tokens", 1, 8, 512, 2048, "nt"),
]
FLOPS_A_TURN = 1e8


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(args.threads)

    import numpy as np
    import torch

    from oneflow.kernels import cpu_products
    from oneflow.kernels.threads import set_limit

    set_limit(args.threads)
    torch.set_num_threads(args.threads)
    libraries = cpu_products.found_libraries()
    rng = np.random.default_rng(0)
    peak = measured_peak() * args.threads
    rows: list[dict[str, Any]] = []
    for name, count, m, k, n, layout in SHAPES:
        a = rng.random((count, k, m) if layout[0] == "t" else (count, m, k), np.float32)
        b = rng.random((count, n, k) if layout[1] == "t" else (count, k, n), np.float32)
        if layout[0] == "t":
            a = a.swapaxes(1, 2)
        if layout[1] == "t":
            b = b.swapaxes(1, 2)
        if count == 1:
            a, b = a[0], b[0]
        outs = [np.empty((*a.shape[:-1], n), np.float32) for _ in range(2 + len(libraries))]
        given, result = (torch.from_numpy(a), torch.from_numpy(b)), torch.from_numpy(outs[1])
        sides: dict[str, Callable[[], Any]] = {
            "ours": partial(cpu_products.multiply, a, b, outs[0]),
            "PyTorch": partial(torch.matmul, *given, out=result),
        }
        for library, out in zip(libraries, outs[2:], strict=True):
            sides[library.name] = partial(library.multiply, a, b, out)
        flops = 2 * count * m * k * n
        repeat = max(1, round(FLOPS_A_TURN / flops))
        times = in_turns(sides, args.rounds, repeat=repeat)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        for out in outs:
            assert np.max(np.abs(out - exact) / exact) < 1e-5, name
        rates = {side: flops / min(found) / 1e9 for side, found in times.items()}
        best = max(rate for side, rate in rates.items() if side != "ours")
        row = {"shape": name, "m x k x n": f"{count} x {m} x {k} x {n}", "layout": layout}
        rows.append({**row, **rates, "of the best": rates["ours"] / best})
    report(f"GFLOP/s, {args.threads} threads; peak {peak:.0f}", rows, args.json)
    ratios = [row["of the best"] for row in rows]
    print(f"of the best library: median {statistics.median(ratios):.2f}, least {min(ratios):.2f}")


def measured_peak() -> float:
    """GFLOP/s of one thread that multiplies and adds numbers in registers."""
    from time import perf_counter

    from oneflow.kernels.native.product import LANES
    from oneflow.kernels.native.program import Program, function_of

    chains, turns = 12, 1 << 16

    def write() -> Program:
        p = Program(("turns", "zero"))
        one = p.code.constant(1.0, "float", LANES)
        zero = p["zero"].to("float").splat(LANES)  # not known to the compiler
        begun = [zero + float(i) for i in range(chains)]
        found = p.loop(
            0, p["turns"], lambda _, sums: [x.times_plus(one, zero) for x in sums], carried=begun
        )
        total = found[0]
        for x in found[1:]:
            total = total + x
        p.when(total.lane(0).compare("lt", -1.0), lambda: p.store(total, p["zero"]))
        return p

    function = function_of(write)
    numbers, best = struct.pack("2q", turns, 0), float("inf")
    for _ in range(50):
        start = perf_counter()
        function(numbers)
        best = min(best, perf_counter() - start)
    return 2 * chains * LANES * turns / best / 1e9


if __name__ == "__main__":
    main()
