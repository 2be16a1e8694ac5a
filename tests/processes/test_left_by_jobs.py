"""Things that script jobs leave, and what is done beside them, on a cluster of this machine."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oneflow.core.errors import ClusterRequestError
from tests.support.local_cluster import LocalTest, submit
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTest]:
    found = LocalTest(tmp_path_factory.mktemp("left"))
    try:
        text = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))"
        hook = shlex.join([sys.executable, "-c", text, str(found.folder / "ended")])
        flags = ["--daemons", "1", "--allow-scripts", "--on-end", hook]
        done = found.run("cluster", "up", *flags)
        assert done.returncode == 0, done.stderr
        yield found
    finally:
        found.run("cluster", "down")


def test_the_files_of_a_script_come_back(local: LocalTest, tmp_path: Path) -> None:
    text = """folder = os.environ["ONEFLOW_OUTPUTS"]
os.makedirs(folder + "/models")
open(folder + "/models/best.bin", "wb").write(b"weights" * 300_000)
open(folder + "/loss.csv", "w").write("1,0.5")
os.symlink("/etc/passwd", folder + "/link")"""
    done = submit(local, local.script("leaves.py", text), "--wait", devices=1)
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.split()[0]
    ended = local.folder / "ended"
    wait_until(lambda: ended.exists() and ended.read_text().endswith("\n"))
    record = json.loads(ended.read_text())
    assert (record["id"], record["state"]) == (job_id, "SUCCEEDED")
    listed = local.run("job", "outputs", job_id)
    assert listed.stdout.splitlines() == ["loss.csv", "models/best.bin"], listed.stderr
    fetched = local.run("job", "outputs", job_id, "--to", str(tmp_path / "to"))
    assert fetched.returncode == 0, fetched.stderr
    assert (tmp_path / "to" / "models" / "best.bin").read_bytes() == b"weights" * 300_000
    assert (tmp_path / "to" / "loss.csv").read_text() == "1,0.5"
    with local.connect() as cluster:
        job = cluster.job(job_id)
        with pytest.raises(ClusterRequestError, match="none of that name"):
            job.output("../work/leaves.py")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "models").symlink_to(tmp_path / "to")
        with pytest.raises(ClusterRequestError, match="no folder of its own"):
            job.save_outputs(tmp_path / "other", ["models/best.bin"])


def test_what_jobs_used_is_accounted_for(local: LocalTest) -> None:
    done = submit(local, local.script("works.py", "time.sleep(0.2)"), "--wait", devices=1)
    assert done.returncode == 0, done.stderr
    local.run("job", "rm", done.stdout.split()[0])
    shown = local.run("job", "usage", "--by", "user", "--by", "day", "-o", "json").stdout
    used = json.loads(shown)
    row = used["usage"][-1]
    assert (row["user"], row["device_type"], row["jobs"]) == ("local", "cpu", row["attempts"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["day"])
    assert row["jobs"] >= 1 and row["device_s"] > 0.2
    table = local.run("job", "usage", "--since", "1h").stdout.splitlines()
    assert table[0].split()[:3] == ["USER", "DEVICE", "JOBS"] and table[1].startswith("local")
