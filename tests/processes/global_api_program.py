"""Runs on the ranks of test_global_api.py: every scene, one after the other, or those that are
named; exits 0 if all is right. Global tensors as a user meets them, in a world of 1, 2 or 4 ranks.

RANKS_PER_HOST: so many ranks take themselves for one host and share memory; others use sockets.
"""

from __future__ import annotations

import os
import sys
import time


def main(wanted: list[str]) -> None:
    import oneflow as flow

    from . import global_conversion_scenes, global_gradient_scenes
    from .global_words import RANK

    for scene in global_conversion_scenes.SCENES + global_gradient_scenes.SCENES:
        if wanted and scene.__name__ not in wanted:
            continue
        start = time.perf_counter()
        scene()
        flow.comm.barrier()
        took = time.perf_counter() - start
        print(f"rank {RANK} {scene.__name__}: {took:.2f} s", file=sys.stderr, flush=True)
    print(f"rank {RANK} done", flush=True)


if __name__ == "__main__":
    if "RANKS_PER_HOST" in os.environ:  # before the package reads its settings
        host = int(os.environ["RANK"]) // int(os.environ["RANKS_PER_HOST"])
        os.environ["ONEFLOW_HOST_IDENTITY"] = f"host{host}"
    main(sys.argv[1:])
