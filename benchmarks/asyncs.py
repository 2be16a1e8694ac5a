"""Two independent chains of matrix products: one after the other, and on two asyncs workers.

    python benchmarks/asyncs.py [--rounds N] [--size N] [--length N] [--threads N] [--json FILE]

Every product takes one BLAS thread (`--threads`), so two cores can be twice as fast as one. The
same of PyTorch, if it is installed: one after the other, and on two Python threads.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from measure import arguments, in_turns, paired, report

Side = Callable[[], Any]


def _matrices(size: int) -> tuple[Any, Any, Any]:
    """The start of both chains, and the factor of each, which keeps lengths."""
    import numpy as np

    rng = np.random.default_rng(0)
    start, one, two = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(3))
    return start, one / size**0.5, two / size**0.5


def _chain(x: Any, factor: Any, length: int) -> Any:
    for _ in range(length):
        x = x @ factor
    return x


def ours(settings: argparse.Namespace) -> dict[str, Side]:
    """Both sides of our library; each returns the ends of both chains as arrays."""
    import oneflow as flow

    start, one, two = (flow.tensor(m) for m in _matrices(settings.size))
    workers = flow.asyncs.Thread(), flow.asyncs.Thread()

    def in_turn() -> list[Any]:
        return [_chain(start, f, settings.length).numpy() for f in (one, two)]

    def overlapped() -> list[Any]:
        ends = []
        for worker, factor in zip(workers, (one, two), strict=True):
            with flow.asyncs.thread(worker):
                ends.append(_chain(start, factor, settings.length))
        return [end.numpy() for end in ends]

    return {"one thread": in_turn, "two workers": overlapped}


def theirs(settings: argparse.Namespace) -> dict[str, Side]:
    """The same of PyTorch; nothing where it is not installed."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(settings.threads)
    start, one, two = (torch.from_numpy(m) for m in _matrices(settings.size))
    pool = ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(settings.threads,))

    def in_turn() -> list[Any]:
        return [_chain(start, f, settings.length).numpy() for f in (one, two)]

    def overlapped() -> list[Any]:
        futures = [pool.submit(_chain, start, f, settings.length) for f in (one, two)]
        return [future.result().numpy() for future in futures]

    return {"torch, one thread": in_turn, "torch, two Python threads": overlapped}


def check(sides: dict[str, Side]) -> None:
    """Raises AssertionError if the sides do not agree."""
    import numpy as np

    wanted = next(iter(sides.values()))()
    for name, run in sides.items():
        for found, expected in zip(run(), wanted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3, err_msg=name)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", type=int, default=1000, help="rows and columns")
    parser.add_argument("--length", type=int, default=12, help="products of a chain")
    parser.add_argument("--threads", type=int, default=1, help="BLAS threads of a product")
    settings = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(settings.threads)  # before NumPy and PyTorch are imported
    sides = ours(settings) | theirs(settings)
    check(sides)
    times = in_turns(sides, settings.rounds)
    names = list(sides)
    rows: list[dict[str, Any]] = []
    for i in range(0, len(names), 2):
        plain, overlapped = names[i], names[i + 1]
        found = paired(times, overlapped, plain)
        rows.append(
            {
                "side": overlapped,
                "over": plain,
                "seconds": found["ours_s"],
                "alone_s": found["theirs_s"],
                "ratio": found["ratio"],
                "p10": found["ratio_p10"],
                "p90": found["ratio_p90"],
                "best": min(times[plain]) / min(times[overlapped]),
            }
        )
    title = f"two chains of {settings.length} products, float32[{settings.size}, {settings.size}]"
    report(f"{title}, {settings.threads} BLAS thread each; results agree", rows, settings.json)


if __name__ == "__main__":
    main()
