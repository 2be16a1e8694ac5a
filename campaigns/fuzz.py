"""Inputs that nobody means, two million of them: messages, files, and calls of a cluster.

    python -m campaigns.fuzz [--inputs N] [--seed S] [--only KIND,KIND]

Verdicts: nothing but declared errors, no input takes five seconds, memory grows by less than 64 MB,
decoding and encoding again is stable, nothing wrong is taken for right, and a cluster that
was fed goes on serving, with as many descriptors and threads as before.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults import fuzz_files, fuzz_jobfiles, fuzz_messages
from tests.faults.fuzz_inputs import Verdict, hangs_found, message_kinds

from . import servers

__all__ = ["KINDS", "fuzz_here", "fuzz_served", "message_kinds"]

MAX_GROWTH_NBYTES = 64 << 20
WARM = 1000
JOBS = ("tiny", "dense", "stages", "embedding")


@dataclass(frozen=True)
class Setting:
    """Targets to feed: job files in `folder`, and a cluster if the kind needs one."""

    folder: Path
    rig: Any = None

    @property
    def jobs(self) -> list[Path]:
        """Those that were exported, the smallest first."""
        found = [self.folder / f"{name}.job" for name in JOBS]
        return [path for path in found if path.exists()]


@dataclass(frozen=True)
class Kind:
    """share: of all inputs, in thousandths. served: by a cluster."""

    name: str
    share: int
    feed: Callable[[Verdict, range, Setting], None]
    served: bool = False


KINDS = (
    Kind("messages", 720, lambda v, seeds, on: fuzz_messages.fuzz_messages(v, seeds)),
    Kind("job files", 110, lambda v, seeds, on: fuzz_jobfiles.fuzz_jobfiles(v, seeds, on.jobs)),
    Kind("checkpoints", 120, lambda v, seeds, on: fuzz_files.fuzz_checkpoints(v, seeds)),
    Kind("archives", 20, lambda v, seeds, on: fuzz_files.fuzz_archives(v, seeds)),
    Kind("grpc", 30, lambda v, seeds, on: servers.fuzz_grpc(v, seeds, on.rig), served=True),
)
"""Thousandths of all inputs. Besides: what is exhaustive, and greedy clients."""
SERVED = frozenset(("greedy", *(kind.name for kind in KINDS if kind.served)))


# ---- feeding -------------------------------------------------------------------------------------


def rss_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def seeds_of(kind: Kind, inputs: int, seed: int) -> range:
    return range(seed, seed + max(inputs * kind.share // 1000, 1))


def wanted(kind: Kind, only: str) -> bool:
    return not only or kind.name in only.split(",")


@contextmanager
def timed(verdict: Verdict) -> Iterator[None]:
    """Says how it went."""
    start = time.monotonic()
    try:
        yield
    finally:  # also if it is interrupted: what was tried was tried
        verdict.seconds = time.monotonic() - start
        say(verdict)


def fuzz_here(inputs: int, seed: int, only: str, setting: Setting) -> list[Verdict]:
    """All that needs no cluster. A kind that is named with `only` gets its own share all the
    same."""
    found = []
    with hangs_found():
        for kind in (k for k in KINDS if not k.served and wanted(k, only)):
            verdict = Verdict(kind.name)
            with timed(verdict):
                _feed_here(kind, verdict, seeds_of(kind, inputs, seed), setting)
            found.append(verdict)
    return found


def _feed_here(kind: Kind, verdict: Verdict, seeds: range, setting: Setting) -> None:
    """Caches and imports come first, for they stay."""
    warm = min(len(seeds), WARM)
    kind.feed(verdict, seeds[:warm], setting)
    before = rss_nbytes()
    if len(seeds) > warm:
        kind.feed(verdict, seeds[warm:], setting)
    verdict.grown = rss_nbytes() - before
    if verdict.grown > MAX_GROWTH_NBYTES:
        verdict.blame(f"memory grew by {verdict.grown >> 20} MB")


def fuzz_served(
    inputs: int, seed: int, only: str, setting: Setting, scale: float = 1.0
) -> list[Verdict]:
    """All that a cluster is asked. scale: of the numbers of greedy clients."""
    found = []
    with hangs_found():
        for kind in (k for k in KINDS if k.served and wanted(k, only)):
            verdict = Verdict(kind.name)
            with timed(verdict), servers.looked_at(setting.rig, verdict):
                kind.feed(verdict, seeds_of(kind, inputs, seed), setting)
            found.append(verdict)
        if not only or "greedy" in only:
            verdict = Verdict("greedy")
            with timed(verdict), servers.looked_at(setting.rig, verdict):
                servers.fuzz_greedy(verdict, setting.rig, scale)
            found.append(verdict)
    return found


def fuzz_all_there_is(only: str, setting: Setting) -> list[Verdict]:
    """Inputs that can be tried exhaustively."""
    found = []
    works: tuple[tuple[str, Callable[[Verdict], None]], ...] = (
        ("cut job file", partial(fuzz_jobfiles.truncate_jobfile, sample=setting.jobs[-1])),
        ("broken checkpoints", fuzz_files.break_checkpoints),
    )
    with hangs_found():
        for name, work in works:
            if not only or name in only.split(","):
                verdict = Verdict(name)
                with timed(verdict):
                    work(verdict)
                found.append(verdict)
    return found


# ---- saying --------------------------------------------------------------------------------------


def say(verdict: Verdict) -> None:
    ends = ", ".join(f"{name} {count}" for name, count in verdict.ends.most_common(8))
    print(
        f"{verdict.name:18} {verdict.inputs:8} inputs {verdict.seconds:6.1f} s, "
        f"+{verdict.grown >> 10} KB, slowest {verdict.slowest_s * 1000:.0f} ms, "
        f"{len(verdict.bad)} defects: {ends}" + (f"; {verdict.remark}" if verdict.remark else ""),
        flush=True,
    )
    for text in verdict.bad[:8]:
        again = f"python -m campaigns.fuzz --only '{verdict.name}' --seed ..."
        print(f"  {text}\n  again: {again}", flush=True)


def main() -> int:
    from tests.support.cluster import export_jobs

    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    kinds = ", ".join([*(k.name for k in KINDS), "greedy", "cut job file", "broken checkpoints"])
    parser.add_argument("--only", default="", help=f"some of: {kinds}")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no error of an input ends it
    with tempfile.TemporaryDirectory(prefix="oneflow-rig-") as name:
        setting = Setting(Path(name))
        export_jobs(setting.folder)
        fuzz_jobfiles.tiny_job(setting.folder / "tiny.job")
        found = []
        if not args.only or any(w in SERVED for w in args.only.split(",")):
            found += _served(args, setting)
        found += fuzz_all_there_is(args.only, setting)
        found += fuzz_here(args.inputs, args.seed, args.only, setting)
    print(f"{sum(v.inputs for v in found)} inputs, {sum(len(v.bad) for v in found)} defects")
    return any(v.bad for v in found)


def _served(args: argparse.Namespace, setting: Setting) -> list[Verdict]:
    folder = setting.folder / "rig"
    folder.mkdir()
    rig = servers.started(folder, setting.folder / "tiny.job")
    try:
        return fuzz_served(args.inputs, args.seed, args.only, Setting(setting.folder, rig))
    finally:
        rig.stop()


if __name__ == "__main__":
    sys.exit(main())
