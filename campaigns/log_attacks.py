"""Logs that are meant to harm the programs that keep, relay or show them."""

from __future__ import annotations

import sys

from tests.support.cluster import Rig

from .ground import END_S, Ground, expect, expect_next

ATTACKS = {
    "ansi": r"""
import sys
for i in range(20_000): sys.stdout.write(f'\x1b[2J\x1b]0;title\x07\x1b[31m{i}\r\x00\n')
""",
    "one line of 64 MiB": """
import sys
for _ in range(1024): sys.stdout.write('y' * 65536)
""",
    "invalid UTF-8": r"""
import os
for _ in range(2000): os.write(1, b'\xff\xfe\xc0\x80\xed\xa0\x80' * 30 + b'\n')
""",
    "as fast as it goes": """
import os, time
end, block = time.monotonic() + 4, b'z' * 127 + b'\\n'
while time.monotonic() < end: os.write(1, block * 8192)
""",
}


def log_attacks(ground: Ground) -> str:
    """While logs are followed, calls are answered and beats come."""
    with ground.cluster() as rig:
        before = _lag_buckets(rig)
        said = []
        for name, text in ATTACKS.items():
            job = rig.client().submit_script([sys.executable, "-c", text], devices=1)
            longest, total = 0, 0
            for line in job.logs(follow=True):
                longest, total = max(longest, len(line.data)), total + len(line.data) + 1
            record = job.wait(END_S)
            expect(str(record.state) == "SUCCEEDED", f"{name}: {record.state} {record.cause}")
            expect(longest <= 1 << 17, f"{name}: a line of {longest} bytes was handed out whole")
            said.append(f"{name}: {total >> 10} KiB")
            job.remove()
        lag = _p99(before, _lag_buckets(rig))
        expect(lag <= 0.1, f"the scheduler's loop was {lag:g} s late")
        _escaped(rig)
        expect_next(rig, ground)
        return f"loop late p99 <= {lag * 1000:g} ms; {', '.join(said)}"


def _escaped(rig: Rig) -> None:
    """Spells control characters out on a terminal."""
    from oneflow.launcher.logs import escape

    shown = escape("\x1b[2J\x07\x00\x9b31m")
    expect(not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown), f"not escaped: {shown!r}")


def _lag_buckets(rig: Rig) -> dict[float, float]:
    start = 'oneflow_scheduler_loop_lag_seconds_bucket{le="'
    found = rig.metrics("scheduler")
    return {float(k[len(start) : -2]): v for k, v in found.items() if k.startswith(start)}


def _p99(before: dict[float, float], now: dict[float, float]) -> float:
    """Upper bound of the bucket in which the 99th of a hundred looks falls."""
    new = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
    total = new.get(float("inf"), 0.0)
    expect(total > 0, "nobody measured the loop")
    return min(bound for bound, count in new.items() if count >= 0.99 * total)
