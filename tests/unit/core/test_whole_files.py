"""Files written whole: the kinds of paths that a rename may replace."""

import os
import socket
import stat
from pathlib import Path

import pytest

import oneflow as flow
from oneflow.core.errors import FileKindError, OneFlowError
from oneflow.core.whole_files import PendingFile, target_of, write_whole
from oneflow.io.convert import convert
from oneflow.services.traces import TraceWriter
from oneflow.utils.data import records


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def _device(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes devices")
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))


SPECIAL = {"pipe": _pipe, "socket": _socket, "device": _device}


def _save(path: Path) -> None:
    flow.save({"w": flow.ones(3)}, path)


def _convert(path: Path) -> None:
    source = path.with_name("source")
    _save(source)
    try:
        convert(source, path)
    finally:
        source.unlink()


def _profile(path: Path) -> None:
    with flow.profiler.profile() as found:
        flow.ones(2) + 1
    found.events().export_chrome_trace(path)


def _trace(path: Path) -> None:
    TraceWriter(path, {}).commit({})


class _Double(flow.nn.Graph):
    def build(self, x):
        return x * 2


def _export(path: Path) -> None:
    graph = _Double()
    graph(flow.ones(2, 3))
    graph.export(path, inputs={"x": flow.ones(2, 3)})


WRITERS = {
    "save": _save,
    "convert": _convert,
    "profiler": _profile,
    "trace": _trace,
    "export": _export,
    "records": lambda path: records.write(path, [{"n": [1]}]),
    "write_whole": lambda path: write_whole(path, b"new"),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("writer", WRITERS)
def test_special_file_is_refused_before_anything_is_written(writer, kind, tmp_path):
    path = tmp_path / "special"
    SPECIAL[kind](path)
    before = os.lstat(path)
    with pytest.raises(OneFlowError, match="special is a") as raised:
        WRITERS[writer](path)
    assert isinstance(raised.value, OSError) and "open" in str(raised.value)
    assert os.lstat(path) == before
    assert os.listdir(tmp_path) == ["special"]


@pytest.mark.parametrize("writer", WRITERS)
def test_symbolic_link_is_followed(writer, tmp_path):
    (tmp_path / "disk").mkdir()
    real = tmp_path / "disk" / "real"
    real.write_bytes(b"old")
    link, further = tmp_path / "link", tmp_path / "further"
    link.symlink_to(Path("disk", "real"))
    further.symlink_to(link)
    inode = real.stat().st_ino
    WRITERS[writer](further)
    assert link.is_symlink() and further.is_symlink() and not real.is_symlink()
    assert real.read_bytes() != b"old"
    assert real.stat().st_ino != inode  # another file took the name: readers see old or new
    assert os.listdir(real.parent) == ["real"]


def test_link_to_nothing_makes_its_target(tmp_path):
    (tmp_path / "link").symlink_to("target")
    _save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert flow.load(tmp_path / "target")["w"].tolist() == [1, 1, 1]


def test_links_in_a_circle_are_an_error_of_the_file_system(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        target_of(tmp_path / "a")


def test_folder_is_refused_where_a_file_is_meant(tmp_path):
    with pytest.raises(FileKindError, match=r"is a folder.*name a file in it"):
        PendingFile(tmp_path)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_an_older_file_keeps_its_permissions(mode, tmp_path):
    path = tmp_path / "w"
    path.touch()
    path.chmod(mode)
    _save(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_new_file_has_the_permissions_of_the_process(tmp_path):
    older = os.umask(0o027)
    try:
        _save(tmp_path / "w")
    finally:
        os.umask(older)
    assert stat.S_IMODE((tmp_path / "w").stat().st_mode) == 0o640


def test_name_of_255_bytes(tmp_path):
    name = "ä" * 127 + "x"
    _save(tmp_path / name)
    assert os.listdir(tmp_path) == [name]


def test_open_pipe_is_written(tmp_path):
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file:
        flow.save({"w": flow.ones(2)}, file)
    with os.fdopen(reading, "rb") as file:
        (tmp_path / "copy").write_bytes(file.read())
    assert flow.load(tmp_path / "copy")["w"].tolist() == [1, 1]
