"""`python -m tests.fuzz`: programs of the public table, in PyTorch and here."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter

from .drawing import Program
from .programs import draw
from .running import GLOBAL, MODES, RANKS, Difference, differences, said_by_ranks
from .shrinking import shrunk


def key(program: Program, difference: Difference) -> tuple[str, ...]:
    """Equal for differences that are shown once: the mode, the kind and the calls of a program."""
    calls = re.findall(r"(?<=[\w.])\.?(\w+)\(|( \W+ )", "\n".join(program.lines[-1:]))
    return (difference.mode, difference.kind, *(a or b for a, b in calls))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="at most, in one process"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--most", type=int, default=20, help="differences that are shown")
    given = parser.parse_args()
    modes = tuple(given.modes.split(","))
    alone = tuple(m for m in modes if m != GLOBAL)
    if alone == modes or os.environ.get("WORLD_SIZE") == str(RANKS):
        return 1 if _tried(given, modes) else 0
    failed = bool(_tried(given, alone)) if alone else False
    names = ("programs", "seconds", "seed", "most")
    words = [w for name in names for w in (f"--{name}", str(vars(given)[name]))]
    launch = "-m oneflow.distributed.launch --standalone --nproc_per_node 2 --module tests.fuzz"
    ranks = [sys.executable, *launch.split(), *words, "--modes", GLOBAL]
    return subprocess.run(ranks, check=False).returncode or int(failed)


def _tried(given: argparse.Namespace, modes: tuple[str, ...]) -> int:
    """Number of differences. All ranks of a world draw the same programs."""
    is_first = os.environ.get("RANK", "0") == "0"
    start, found, tried = time.monotonic(), 0, 0
    kinds: Counter[str] = Counter()
    shown: set[tuple[str, ...]] = set()
    for seed in range(given.seed, given.seed + given.programs):
        is_late = time.monotonic() - start > given.seconds
        if any(said_by_ranks(is_late)) if modes == (GLOBAL,) else is_late:
            break
        program = draw(seed)
        try:
            different = differences(program, modes)
        except KeyboardInterrupt:
            break
        except Exception:
            print(f"# seed {seed}: {modes} ended\n{program.source()}\n", flush=True)
            raise
        tried += 1
        for difference in different:
            found += 1
            kinds[f"{difference.mode} {difference.kind}"] += 1
            if len(shown) < given.most:
                least, last = shrunk(program, difference)
                if is_first:
                    source = f"\n{least.source()}\n" if key(least, last) not in shown else ""
                    print(f"# seed {seed}: {last}{source}", flush=True)
                shown.add(key(least, last))
    if is_first:
        print(f"{tried} programs in {time.monotonic() - start:.0f} s, {found} differences")
        for kind, count in kinds.most_common():
            print(f"  {count:6} {kind}")
    return found


if __name__ == "__main__":
    sys.exit(main())
