"""`python -m tests.fuzz`: programs of the public table, in PyTorch and here."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter

from .drawing import Program
from .programs import draw
from .running import MODES, Difference, differences
from .shrinking import shrunk


def key(program: Program, difference: Difference) -> tuple[str, ...]:
    """Equal for differences that are shown once: the mode, the kind and the calls of a program."""
    calls = re.findall(r"(?<=[\w.])\.?(\w+)\(|( \W+ )", "\n".join(program.lines[-1:]))
    return (difference.mode, difference.kind, *(a or b for a, b in calls))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most so long")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--most", type=int, default=20, help="differences that are shown")
    given = parser.parse_args()
    modes, start, found, tried = tuple(given.modes.split(",")), time.monotonic(), 0, 0
    kinds: Counter[str] = Counter()
    shown: set[tuple[str, ...]] = set()
    for seed in range(given.seed, given.seed + given.programs):
        if time.monotonic() - start > given.seconds:
            break
        tried += 1
        program = draw(seed)
        for difference in differences(program, modes):
            found += 1
            kinds[f"{difference.mode} {difference.kind}"] += 1
            if len(shown) < given.most:
                least, last = shrunk(program, difference)
                if key(least, last) not in shown:
                    shown.add(key(least, last))
                    print(f"# seed {seed}: {last}\n{least.source()}\n", flush=True)
    print(f"{tried} programs in {time.monotonic() - start:.0f} s, {found} differences")
    for kind, count in kinds.most_common():
        print(f"  {count:6} {kind}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
