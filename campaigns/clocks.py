"""Clocks that jump, and clocks that differ between hosts."""

from __future__ import annotations

import os
import time

from tests.support.cluster import DEVICES, ROOT
from tests.support.waiting import wait_until

from .ground import Ground, ends_well, expect, expect_next, make_rig, train


def clock_jumps(ground: Ground) -> str:
    """Wall clocks of scheduler and daemons jump by hours: nothing is late for that."""
    clocks = {n: ground.folder / f"clock{i}" for i, n in enumerate(("scheduler", *DEVICES))}
    rig = make_rig(ground.folder)
    paths = [
        str(ROOT / "campaigns" / "injected"),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    for name, path in clocks.items():
        path.write_text("0")
        rig.more_env[name] = {"RIG_CLOCK": str(path), "PYTHONPATH": os.pathsep.join(paths)}
    with rig:
        job = train(rig, ground, time_limit=300)
        wait_until(lambda: job.status().last_step >= 5, "it runs")
        for jumps in ((3600, -3600, 0), (-3600, 7200, 3600), (86400, 0, -86400), (0, 0, 0)):
            for path, jump in zip(clocks.values(), jumps, strict=True):
                path.write_text(str(jump))
            time.sleep(0.3)
        ends_well(job, ground)
        epochs = {d.epoch for d in rig.client().status().daemons}
        expect(epochs == {1, 2}, f"daemons had to join again: {epochs}")
        clocks["scheduler"].write_text("-3600")
        expect_next(rig, ground)
        return "jumps of up to a day, either way, in one job: no restart, no new epoch"


def other_monotonic_clock(ground: Ground) -> str:
    """A daemon whose monotonic clock is 11 days ahead, as on a host that was started earlier."""
    rig = make_rig(ground.folder)
    rig.prefix[DEVICES[1]] = ["unshare", "--time", "--monotonic", "1000000", "--"]
    with rig:
        ends_well(train(rig, ground), ground)
        return "a job over both: identical"
