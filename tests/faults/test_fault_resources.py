"""Resources that run out; skipped where disks of a given size cannot be mounted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from campaigns.ground import missing_right
from campaigns.resources import SCENES
from tests.support.cluster import ROOT, own_program


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SCENES)
def test_what_runs_out_harms_nobody_else(name: str, tmp_path: Path) -> None:
    if why := missing_right():
        pytest.skip(why)
    found = tmp_path / "outcomes.json"
    words = [*own_program("resources"), "--only", name, "--json", str(found)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280)
    outcomes = json.loads(found.read_text()) if found.exists() else []
    errors = {o["name"]: o["error"] for o in outcomes}
    assert name in errors, done.stdout + done.stderr
    assert not errors[name]
