"""What the ranks of test_global_api.py run: every scene, one after the other, or those that are
named; exits 0 if all is right. Global tensors as a user meets them, in a world of 1, 2 or 4 ranks.
"""

from __future__ import annotations

import sys
import time

import global_conversion_scenes
import global_gradient_scenes
from global_words import RANK

import oneflow as flow

if __name__ == "__main__":
    for scene in global_conversion_scenes.SCENES + global_gradient_scenes.SCENES:
        if sys.argv[1:] and scene.__name__ not in sys.argv[1:]:
            continue
        start = time.perf_counter()
        scene()
        flow.comm.barrier()
        took = time.perf_counter() - start
        print(f"rank {RANK} {scene.__name__}: {took:.2f} s", file=sys.stderr, flush=True)
    print(f"rank {RANK} done", flush=True)
