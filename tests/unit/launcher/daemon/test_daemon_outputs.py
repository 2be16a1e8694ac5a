"""The files that a script leaves: listed and opened by name, and nothing outside their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oneflow.core.errors import ProtocolError
from oneflow.launcher.daemon import outputs
from oneflow.launcher.daemon.outputs import open_output, output_names
from oneflow.launcher.daemon.programs import Script
from oneflow.launcher.daemon.rank_resources import RankResources
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import AttemptKey
from tests.unit.launcher.daemon.test_daemon_rank import place_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Outputs with things among them that are none."""
    (tmp_path / "secret").write_text("not theirs")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("not theirs")
    made = tmp_path / "outputs"
    (made / "a" / "b").mkdir(parents=True)
    (made / "a" / "b" / "best.pt").write_bytes(b"weights")
    (made / "loss.csv").write_bytes(b"1,2")
    (made / "last.safetensors").write_bytes(b"arrays")
    (made / ".hidden").write_text("")
    (made / "two\nlines").write_text("")
    (made / "link").symlink_to(tmp_path / "secret")
    (made / "linked").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(made / "pipe")
    return made


def test_files_are_named_by_their_path_and_nothing_else_is(folder: Path, tmp_path: Path) -> None:
    assert output_names(folder) == ["a/b/best.pt", "last.safetensors", "loss.csv"]
    assert output_names(tmp_path / "none") == []
    assert output_names(folder / "linked") == []  # the folder itself was swapped for a link


@pytest.mark.parametrize(
    ("name", "data"),
    [("a/b/best.pt", b"weights"), ("loss.csv", b"1,2"), ("last", b"arrays")],
)
def test_a_file_is_opened_by_its_name(folder: Path, name: str, data: bytes) -> None:
    with open_output(folder, name) as file:
        assert file.read() == data


@pytest.mark.parametrize(
    "name",
    [
        *("../secret", "a/../../secret", "/etc/passwd", "link", "linked/file", "pipe", ".hidden"),
        *("a", "a//b/best.pt", "a/b/best.pt\0", "/".join(["a"] * 20)),
    ],
)
def test_nothing_else_is_opened(folder: Path, name: str) -> None:
    with pytest.raises(ProtocolError, match=r"there are a/b/best\.pt, last\.safetensors, loss"):
        open_output(folder, name)


def test_more_files_than_can_be_told_are_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "MAX_NAMES", 2)
    assert output_names(folder) == ["a/b/best.pt", "last.safetensors"]


def test_a_script_is_told_the_folder_whatever_its_owner_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = pb.JobSpec(argv=["true"], env={"ONEFLOW_OUTPUTS": "/etc"})
    prepare, key = pb.Prepare(spec=spec, world_size=1), AttemptKey("j1", 1, 0)
    own = RankResources(key, prepare, DaemonSettings("cpu:0", "h:1", tmp_path, env={}))
    script = Script(key, prepare, own, place_in(tmp_path, []))
    assert script.env("127.0.0.1", 1)["ONEFLOW_OUTPUTS"] == str(own.job_dir / "outputs")
