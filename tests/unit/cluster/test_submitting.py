"""The way of flags, files and arguments into a JobSpec."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from oneflow.cluster.client import Cluster
from oneflow.cluster.local_record import LocalCluster, folder, write_record
from oneflow.cluster.submitting import (
    check_argv,
    job_file_of,
    make_spec,
    new_job_id,
    read_job_file,
    send_job_file,
)
from oneflow.core.errors import ConfigError, JobSpecError
from oneflow.jobs.description import JobFileError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.limits import check_job_id, check_spec
from oneflow.scheduler.jobs.records import JobKind, JobRecord, JobSpec


def test_all_options_reach_the_spec() -> None:
    options = {"name": "n", "devices": 4, "nodes": 2, "priority": 3, "env": {"A": "1"}}
    options |= {"max_restarts": 2, "restart_on": ["SIGNAL", 7], "time_limit": "2h"}
    options |= {"cpus": 2, "memory": "4GiB"}
    spec = make_spec(JobKind.SCRIPT, options, argv=("python", "x.py"))
    check_spec(spec)
    assert (spec.devices, spec.nodes, spec.priority, spec.max_restarts) == (4, 2, 3, 2)
    assert spec.restart_on == ("SIGNAL", "7")
    assert spec.time_limit_s == 7200
    assert (spec.cpus, spec.memory_nbytes) == (2.0, 4 << 30)
    assert spec.env == {"A": "1"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"devices": "two"}, "must be a whole number"),
        ({"devices": True}, "must be a whole number"),
        ({"name": 3}, "must be a text"),
        ({"auto_parallel": 1}, "must be true or false"),
        ({"zero": True}, "must be a whole number"),
        ({"env": ["A=1"]}, "must be a table"),
        ({"devises": 2}, "did you mean 'devices'"),
        ({"time_limit": "soon"}, "write it like"),
        ({"memory": "much"}, "write it like"),
        ({"cpus": "2"}, "must be a number"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises((JobSpecError, ConfigError), match=said):
        make_spec(JobKind.SCRIPT, options)


def test_what_is_none_was_not_given() -> None:
    assert make_spec(JobKind.SCRIPT, {"devices": None, "name": None}).devices == 1


def test_new_ids_are_valid_and_different() -> None:
    ids = {new_job_id() for _ in range(100)}
    assert len(ids) == 100
    for job_id in ids:
        check_job_id(job_id)


def test_argv_is_a_list() -> None:
    assert check_argv(["python", "a b"]) == ("python", "a b")
    with pytest.raises(JobSpecError, match="no shell"):
        check_argv("python x.py")


def test_a_job_toml(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('devices = 2\nargv = ["python", "x.py"]\nworking_dir = "here"\n[env]\nA = "1"')
    found = read_job_file(path)
    assert found["working_dir"] == str(tmp_path / "here")
    assert found["argv"] == ["python", "x.py"]
    path.write_text("argv = [1]")
    with pytest.raises(ConfigError, match="list of texts"):
        read_job_file(path)
    path.write_text("devises = 2")
    with pytest.raises(ConfigError, match="did you mean 'devices'"):
        read_job_file(path)


def test_a_job_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.job"
    path.write_bytes(b"nothing")
    for kept in (pb.BlobInfo(), pb.BlobInfo(digest="0" * 64, nbytes=7)):
        connection = SimpleNamespace(call=lambda *_, kept=kept: kept)
        with pytest.raises(JobFileError, match=r"x\.job"):
            send_job_file(connection, path)
    with (
        pytest.raises(JobSpecError, match="unknown option 'devises'"),
        job_file_of(path, {"devises": 2}),
    ):
        pass
    with pytest.raises(JobSpecError, match="says that already"), job_file_of(path, {"steps": 2}):
        pass


@pytest.mark.parametrize(
    ("devices", "asked", "wanted"),
    [
        (["cpu:0"], {}, "cpu"),
        (["cuda:0", "cuda:1"], {}, "cuda"),
        (["cpu:0", "cuda:0"], {}, "cpu"),
        (["cuda:0"], {"device_type": "cpu"}, "cpu"),
    ],
)
def test_a_job_means_the_devices_there_are(
    devices: list[str], asked: dict[str, str], wanted: str
) -> None:
    class Fake:
        def call(self, *arguments: object) -> pb.ClusterStatus:
            return pb.ClusterStatus(daemons=[pb.DaemonStatus(device=d) for d in devices])

    cluster = Cluster(Fake())  # type: ignore[arg-type]
    cluster.status()
    assert make_spec(JobKind.SCRIPT, cluster._placed(asked)).device_type == wanted


def test_a_checkpoint_of_this_machine_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaves it to daemons on other machines: only they can say."""
    sent: list[str] = []

    def send_job(connection: object, job_id: str, spec: JobSpec) -> JobRecord:
        sent.append(spec.resume_from)
        return JobRecord(job_id, spec)

    monkeypatch.setattr("oneflow.cluster.client.send_job", send_job)
    monkeypatch.setenv("ONEFLOW_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "state").mkdir(parents=True)
    (tmp_path / "step-7").mkdir()
    cluster = Cluster(SimpleNamespace(address="127.0.0.1:7"))  # type: ignore[arg-type]
    cluster.submit_script(["true"], resume_from="/nonexistent")
    write_record(tmp_path / "state", LocalCluster("127.0.0.1:7", ()))
    with pytest.raises(JobSpecError, match="no such checkpoint"):
        cluster.submit_script(["true"], resume_from="/nonexistent")
    cluster.submit_script(["true"], resume_from="step-7")
    assert sent == ["/nonexistent", str(tmp_path / "step-7")]


@pytest.mark.parametrize(
    ("asked", "after"), [("a", "a"), (["a", "b:any"], "a,b:any"), (("a",), "a"), (None, "")]
)
def test_one_or_several_jobs_to_come_after(asked: object, after: str) -> None:
    assert make_spec(JobKind.SCRIPT, {"after": asked}, argv=("x",)).after == after


def test_nodes_and_labels_reach_the_spec() -> None:
    options = {"only_nodes": "a", "exclude_nodes": ["b"], "require_labels": ("gpu=h200", "x=1")}
    spec = make_spec(JobKind.SCRIPT, options, argv=("x",))
    found = spec.only_nodes, spec.exclude_nodes, spec.require_labels
    assert found == (("a",), ("b",), ("gpu=h200", "x=1"))
    assert spec.where == " on a not on b with gpu=h200, x=1"
