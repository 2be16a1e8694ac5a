"""The audit log: lines of JSON, never lost to a flood, never mixed."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from types import SimpleNamespace

from oneflow.scheduler.cluster.audit import MAX_FAILURES_PER_S, Audit


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_done_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for name in ("a", "b"):  # a second start goes on in the same file
        audit = Audit(path, lambda: 12.5)
        audit.note("submit", "ann", "ipv4:1.2.3.4:5", job=name, text="x\ny" * 2000)
        assert audit.is_new
        audit.sync()
        assert not audit.is_new
        audit.close()
    found = lines(path)
    assert [entry["job"] for entry in found] == ["a", "b"]
    assert found[0]["ts"] == 12.5
    assert len(str(found[0]["text"])) == 2000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_flood_of_failures_is_summed_up(tmp_path: Path) -> None:
    wall = SimpleNamespace(now=1.0)
    audit = Audit(tmp_path / "audit.log", lambda: wall.now)
    for _ in range(100):
        audit.auth_failure("bad", "/oneflow.Jobs/Get", "ipv4:1.2.3.4:5")
    wall.now = 2.0
    audit.auth_failure("bad", "/oneflow.Jobs/Get", "ipv4:1.2.3.4:5")
    found = lines(tmp_path / "audit.log")
    assert len(found) == MAX_FAILURES_PER_S + 1
    assert found[-1]["left_out"] == 100 - MAX_FAILURES_PER_S
    audit.close()
