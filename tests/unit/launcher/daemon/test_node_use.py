"""The meter of a node, given files as Linux writes them."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from oneflow.launcher.daemon.node_use import LOOK_S, NodeMeter, traffic
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import use_in

HEAD = "Inter-| Receive | Transmit\n face |bytes packets\n"


def interface(name: str, received: int, sent: int) -> str:
    return f"{name:>6}: {received} 1 0 0 0 0 0 0 {sent} 2 0 0 0 0 0 0\n"


def proc(folder: Path, received: int, sent: int) -> Path:
    (folder / "net").mkdir(exist_ok=True)
    (folder / "loadavg").write_text("1.25 0.50 0.10 2/300 4000\n")
    (folder / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n")
    (folder / "net/dev").write_text(HEAD + interface("eth0", received, sent))
    return folder


def test_a_node_is_looked_at_now_and_then(tmp_path: Path) -> None:
    now = [100.0]
    meter = NodeMeter(tmp_path, proc(tmp_path, 1000, 50), lambda: now[0])
    use = meter.look()
    assert use is not None
    assert (use.processors, use.load) == (os.cpu_count(), 1.25)
    assert (use.memory_nbytes, use.memory_free_nbytes) == (1000 << 10, 250 << 10)
    assert 0 < use.disk_free_nbytes <= use.disk_nbytes
    assert use.received_nbytes_per_s == use.sent_nbytes_per_s == 0
    now[0] += LOOK_S / 2
    assert meter.look() is None
    now[0] = 104.0
    proc(tmp_path, 9000, 250)
    use = meter.look()
    assert use is not None
    assert (use.received_nbytes_per_s, use.sent_nbytes_per_s) == (2000, 50)
    now[0] = 108.0
    proc(tmp_path, 0, 0)  # counted anew
    use = meter.look()
    assert use is not None and use.received_nbytes_per_s == 0


def test_what_a_system_does_not_tell_stays_out(tmp_path: Path) -> None:
    use = NodeMeter(tmp_path / "none", tmp_path / "none").look()
    assert use == pb.NodeUse(processors=os.cpu_count() or 0)


def test_traffic_within_a_node_and_what_is_counted_twice_is_left_out() -> None:
    names = ("lo", "docker0", "vethab12", "bond0", "eth0.100")
    text = HEAD + "".join(interface(name, 7, 7) for name in names)
    assert traffic(text + interface("eth0", 10, 1) + interface("ib0", 5, 2)) == (15, 3)


@pytest.mark.parametrize("load", [math.nan, math.inf, -1.0, 1e300])
def test_a_scheduler_believes_no_number_that_cannot_be(load: float) -> None:
    assert use_in(pb.DaemonBeat(use=pb.NodeUse(load=load))) is None


def test_a_scheduler_keeps_what_is_small() -> None:
    use = pb.NodeUse(processors=2, load=0.5, memory_nbytes=1 << 40, received_nbytes_per_s=5.0)
    assert use_in(pb.DaemonBeat(use=use)) == use
    assert use_in(pb.DaemonBeat()) is None
    more = pb.NodeUse.FromString(use.SerializeToString() + b"\x7a\x7f" + bytes(127))
    assert use_in(pb.DaemonBeat(use=more)) is None
