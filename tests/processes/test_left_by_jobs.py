"""Files that script jobs leave, and commands beside them, on a cluster of this machine."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from oneflow.core.errors import ClusterRequestError
from tests.support.local_cluster import LocalTest, submit
from tests.support.requirements import wheel
from tests.support.waiting import WAIT_S, wait_until


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
            job.output("../1/rank0/stdout")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "models").symlink_to(tmp_path / "to")
        with pytest.raises(ClusterRequestError, match="no folder of its own"):
            job.save_outputs(tmp_path / "other", ["models/best.bin"])


def test_a_command_runs_beside_a_rank(local: LocalTest) -> None:
    text = "open('here', 'w').close(); print('up', flush=True); time.sleep(600)"
    done = submit(local, local.script("stays.py", text), "--env", "WORD=own", devices=1)
    job_id = done.stdout.split()[0]
    with local.connect() as cluster:
        job = cluster.job(job_id)
        assert next(job.logs(follow=True)).text == "up"
        words = ["sh", "-c", 'ls; echo "$WORD $RANK" >&2; exit 7']
        done = local.run("job", "exec", job_id, "--", *words)
        assert (done.returncode, done.stderr) == (7, "own 0\n")
        assert "here" in done.stdout.split()
        heard: list[bytes] = []
        late = job.execute(["sleep", "600"], timeout=0.3)
        assert late.exit_code == 124 and "ended after 0.3 s" in late.note
        much = job.execute(["yes"], on_output=lambda stream, data: heard.append(data))
        assert much.exit_code == 124 and "more than 4 MiB" in much.note
        assert 0 < sum(map(len, heard)) <= 4 << 20
        for argv, rank, said in ((["/none"], 0, "cannot run"), (["true"], 5, "no rank 5")):
            with pytest.raises(ClusterRequestError, match=said):
                job.execute(argv, rank)
        audit = (local.folder / "state" / "local" / "scheduler" / "audit.log").read_text()
        events = [json.loads(line) for line in audit.splitlines()]
        assert "sleep 600" in [e.get("command") for e in events if e["event"] == "exec"]
        stays = local.start("job", "exec", job_id, "--", "sleep", "601")
        wait_until(lambda: any("601" in words and "exec" not in words for words in cmdlines()))
        job.cancel()
        assert job.wait().state == "CANCELLED"
        assert stays.wait(WAIT_S) in (69, 137, 143)
        assert not any("601" in words and "exec" not in words for words in cmdlines())
        with pytest.raises(ClusterRequestError, match="nothing of it runs"):
            job.execute(["true"])


def cmdlines() -> list[list[str]]:
    """The words of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_text(errors="replace").split("\0"))
    return found


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


def test_limits_of_a_rank_hold_or_the_record_says_that_they_do_not(local: LocalTest) -> None:
    text = """print(os.environ["OMP_NUM_THREADS"], flush=True)
time.sleep(1)"""
    asked = ["--cpus", "1", "--memory", "1GiB", "--wait"]
    done = submit(local, local.script("bounded.py", text), *asked, devices=1)
    assert done.returncode == 0, done.stderr
    with local.connect() as cluster:
        job = cluster.job(done.stdout.split()[0])
        assert [line.text for line in job.logs()] == ["1"]
        record = job.status()
        assert (record.spec.cpus, record.spec.memory_nbytes) == (1.0, 1 << 30)
        assert record.warning == "" or "may write no control group" in record.warning


def test_a_script_runs_with_the_packages_that_it_lists(local: LocalTest) -> None:
    wheel(local.folder / "wheels", "ours", "1.5")
    lines = f"--no-index\n--find-links {local.folder / 'wheels'}\nours\n"
    (local.folder / "requirements.txt").write_text(lines)
    script = local.script("uses.py", "import ours, oneflow; print('ours', ours.VERSION)")
    program = ["--requirements", "requirements.txt", "--", "python", script]
    done = local.run("job", "submit", "--wait", *program)
    assert done.returncode == 0 and done.stdout.endswith("ours 1.5\n"), done.stderr
    (local.folder / "requirements.txt").write_text("--no-index\ntheirs\n")
    done = local.run("job", "submit", "--wait", *program)
    assert done.returncode == 64 and "No matching distribution found for theirs" in done.stderr
