"""Job files: they are read as they were written, and every defect is an error that names its
place.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import oneflow as flow
from oneflow.core.errors import GraphError
from oneflow.core.graph_proto import graph_from_bytes, graph_to_bytes
from oneflow.core.job_config import BindOptions
from oneflow.jobs import JobFileError
from oneflow.jobs.archive import Writer
from oneflow.jobs.running import job_config
from oneflow.protos import graph_pb2

from .job_samples import Predict, Train, data, export, rows


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("job") / "good.job")


def entries_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, entries: dict[str, bytes], *, seal: bool = True) -> Path:
    """A job file of these entries. seal: `job.json` gets their sizes and digests."""
    writer = Writer(path)
    job = json.loads(entries["job.json"])
    for name, content in entries.items():
        if name == "job.json":
            continue
        with writer.entry(name) as file:
            file.write(content)
    if seal:
        job["entries"] = msgspec.to_builtins(writer.written)
    with writer.entry("job.json") as raw:
        raw.write(json.dumps(job).encode())
    writer.commit()
    return path


def changed(good: Path, path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The file with another `job.json`, sealed again."""
    entries = entries_of(good)
    job = json.loads(entries["job.json"])
    change(job)
    entries["job.json"] = json.dumps(job).encode()
    return write(path, entries)


# ---- what is written is read ---------------------------------------------------------------------


def test_a_momentum_that_a_schedule_sets_is_in_the_file(tmp_path: Path) -> None:
    graph = Train()
    optimizer = flow.optim.SGD(graph.model.parameters(), lr=0.1, momentum=0.9)
    schedule = flow.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=6)
    wanted = [schedule.momentum_at(0, step) for step in range(6)]
    graph._spec.optimizers.clear()
    graph.add_optimizer(optimizer, lr_sch=schedule)
    with flow.jobs.load(export(tmp_path / "cycled.ofjob", graph)) as file:
        np.testing.assert_array_equal(file.rates["momentum.0.0"], wanted)


def test_a_rate_that_no_schedule_changes_is_asked_for_once(tmp_path: Path) -> None:
    """However many steps there are: one after the other, these would take a week."""
    graph = Train()
    graph._spec.optimizers.clear()
    graph.add_optimizer(flow.optim.SGD(graph.model.parameters(), lr=0.25))
    path = export(tmp_path / "long.ofjob", graph, data=data().repeat(), steps=10**12)
    with flow.jobs.load(path) as file:
        assert file.description.steps == 10**12
        np.testing.assert_array_equal(file.rates["lr.0.0"], [0.25])


def test_the_file_has_every_way_to_compile_and_bind_the_graph(tmp_path: Path) -> None:
    graph = Train(pieces=2)
    config = graph.config
    config.enable_straighten_algorithm("SpeedFirst")
    config.enable_auto_parallel()
    config.enable_overlap(bucket_nbytes=4096)
    config.enable_compress_memory()
    config.enable_choose_best_memory_allocation(False)
    config.enable_multi_tensor_update()
    config.allow_fuse_cast_scale(False)
    config.set_pipeline_schedule("zero_bubble")
    wanted = graph._spec.job_config()
    with flow.jobs.load(export(tmp_path / "set.job", graph)) as file:
        found = job_config(file, file.graph().num_pieces)
    assert found == wanted
    assert found.binding == BindOptions(True, False, True, ("cast_scale",), True)


def test_a_memory_limit_counts_for_the_file_too(tmp_path: Path) -> None:
    graph = Train()
    graph.config.set_memory_limit(1)
    with pytest.raises(GraphError, match="does not fit in its memory limit of 1 bytes"):
        export(tmp_path / "small.job", graph)


def test_all_of_a_graph_is_there(good: Path) -> None:
    with flow.jobs.load(good) as file:
        d = file.description
        assert (d.kind, d.steps, d.record, d.checkpoints.every) == ("graph", 6, ("loss",), 2)
        assert [(p.name, p.index, p.shape) for p in d.inputs] == [("x", 0, (8, 6)), ("y", 1, (8,))]
        np.testing.assert_allclose(file.rates["lr.0.0"], [0.3] * 3 + [0.15] * 3)
        x, y = rows()
        from oneflow.jobs.sources import Access

        columns = file.open_data(Access())
        np.testing.assert_array_equal(columns["x"], x)
        np.testing.assert_array_equal(columns["y"], y)
        graph = Train()
        weights = dict(graph.model.named_parameters())
        for name in ("0.weight", "0.bias", "3.weight", "3.bias"):
            np.testing.assert_array_equal(
                file.variables.read(f"model.{name}"), weights[name].numpy()
            )
        assert "model.0.weight-momentum_buffer" in file.variables.entries


def test_equal_jobs_make_equal_files(tmp_path: Path, good: Path) -> None:
    again = export(tmp_path / "again.job", name=flow.jobs.verify(good).name)
    a, b = entries_of(good), entries_of(again)
    assert {n: v for n, v in a.items() if n not in ("graph.pb", "job.json")} == {
        n: v for n, v in b.items() if n not in ("graph.pb", "job.json")
    }


def test_an_inference_job(tmp_path: Path) -> None:
    found = flow.jobs.save(Predict(), tmp_path / "p.job", inputs={"x": flow.zeros(4, 6)})
    assert found.kind == "inference" and found.data is None
    assert [p.name for p in found.outputs] == ["scores", "largest"]


def test_what_does_not_fit_together_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "x.job"
    for options, message in (
        ({"steps": None}, "has no end, so give steps"),
        ({"steps": 99, "data": data(epochs=2)}, "99 steps, but the data has 10 batches"),
        ({"record": ["accuracy"]}, "names 'accuracy', which is no output"),
        ({"outputs": ["a", "b"]}, "2 names of outputs, but build.. returns 1"),
        ({"data": None}, "give data=.* or inputs"),
        ({"inputs": {"x": flow.zeros(3, 6)}}, r"input 'x' is float32\[3, 6\]"),
        ({"checkpoint_keep": 0}, "checkpoints.keep must be 1"),
    ):
        with pytest.raises(JobFileError, match=message):
            export(path, **options)
        assert list(tmp_path.iterdir()) == []


# ---- defects -------------------------------------------------------------------------------------


def refuses(path: Path, message: str) -> None:
    with pytest.raises(JobFileError, match=message) as caught:
        flow.jobs.verify(path)
    assert str(path) in str(caught.value) and caught.value.exit_code == 65


CHANGES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda j: j.update(version=1), "version 1, this program reads 2"),
    (lambda j: j.update(format="other"), r"job.json: .*`\$.format`"),
    (lambda j: j.update(kind="script"), r"`\$.kind`"),
    (lambda j: j["config"].update(order_mode="Fast"), "order_mode must be one of"),
    (lambda j: j["config"].update(code="x"), "JobConfig has no field code"),
    (lambda j: j.update(code="import os"), "unknown field `code`"),
    (lambda j: j.pop("inputs"), "missing required field `inputs`"),
    (lambda j: j.update(name=""), "name must have"),
    (lambda j: j.update(steps=0), "steps must be at least 1"),
    (lambda j: j.update(steps=5), "schedule.safetensors: 'lr.0.0'"),
    (lambda j: j.update(updates={}), "nothing in the file feeds input step.0|'step.0'"),
    (lambda j: j["inputs"][0].update(shape=[8, 7]), r"input 'x' is float32\[8, 7\]|inputs are"),
    (lambda j: j["inputs"][0].update(shape=[2**60, 2**60]), "is no shape"),
    (lambda j: j["inputs"].append(j["inputs"][0]), "inputs: one is there twice"),
    (lambda j: j["outputs"][0].update(index=4), "is no output of the graph"),
    (lambda j: j.update(record=["x"]), "record names 'x'"),
    (lambda j: j.update(data=None), "data is missing"),
    (lambda j: j["data"].update(rows=41), r"job was made for float32\[41, 6\]"),
    (lambda j: j["data"].update(batch=0), "data.batch: 0"),
    (lambda j: j["data"].update(batch=4), "the columns give"),
    (lambda j: j["data"].update(kind="pickle"), r"`\$.data.kind`"),
    (lambda j: j["data"].update(kind="npz"), "path '' with data of kind npz"),
    (lambda j: j["data"]["columns"][0].update(path="/etc/passwd"), "path '/etc/passwd' with data"),
    (lambda j: j["data"]["columns"][0].update(name="z"), "columns give"),
    (lambda j: j["checkpoints"].update(every=-1), "checkpoints.every"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_wrong_field_is_named(good: Path, tmp_path: Path, change: Any, message: str) -> None:
    refuses(changed(good, tmp_path / "bad.job", change), message)


def test_entries_that_are_missing_odd_or_damaged(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.job"
    for name in ("graph.pb", "variables.safetensors", "schedule.safetensors"):
        entries = entries_of(good)
        del entries[name]
        refuses(write(path, entries), f"there is no {name}")
    refuses(write(path, {**entries_of(good), "data/more.bin": b"x"}, seal=False), "data/more.bin")
    more = {**entries_of(good), "data/more.bin": b"x"}
    refuses(write(path, more), "a job file has no entry 'data/more.bin'")
    for name in ("graph.pb", "variables.safetensors", "data/arrays.safetensors"):
        entries = entries_of(good)
        entries[name] = entries[name][:-1] + bytes([entries[name][-1] ^ 1])
        refuses(write(path, entries, seal=False), f"{name} is damaged: its digest")


def test_arrays_that_the_graph_or_the_data_has_not(good: Path, tmp_path: Path) -> None:
    entries, path = entries_of(good), tmp_path / "bad.job"
    for name, change, message in (
        ("variables.safetensors", (b"model.0.bias", b"model.0.bIas"), "'model.0.bIas"),
        ("data/arrays.safetensors", (b'"y"', b'"z"'), "'y' is only there"),
    ):
        content = entries[name].replace(*change)
        refuses(write(path, {**entries, name: content}), f"{name}: {message}")
    content = struct.pack("<Q", 17 << 20) + b" " * (17 << 20)
    message = "variables.safetensors: a header of 17825792 bytes, more than 16777216"
    refuses(write(path, {**entries, "variables.safetensors": content}), message)


GRAPHS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda g: g.ops.__setitem__(list(g.ops).index("tanh"), "system"), "no op named 'system'"),
    (lambda g: g.types[0].shape.append(3), "graph.pb: "),
    (lambda g: g.placements[0].runs.__setitem__(1, 1 << 30), "placements of 1073741824 ranks"),
    (lambda g: g.node_num_inputs.__setitem__(5, 1 << 30), "more inputs or outputs than there are"),
    (lambda g: setattr(g, "num_pieces", 0), "0 pieces"),
    (lambda g: g.inputs.__setitem__(0, 5000), "graph.pb: "),
    (lambda g: g.node_op.pop(), "graph.pb: "),
    (lambda g: g.attrs[1].names.append("__class__"), "graph.pb: "),
]


@pytest.mark.parametrize(("change", "message"), GRAPHS)
def test_a_graph_that_is_none(good: Path, tmp_path: Path, change: Any, message: str) -> None:
    entries = entries_of(good)
    proto = graph_pb2.Graph.FromString(entries["graph.pb"])
    change(proto)
    entries["graph.pb"] = proto.SerializeToString()
    refuses(write(tmp_path / "bad.job", entries), message)


def test_nodes_that_the_ops_or_the_file_do_not_know(good: Path, tmp_path: Path) -> None:
    entries = entries_of(good)
    for op, attr, value, message in (
        ("linear", "nonsense", True, "graph.pb: linear has no attribute 'nonsense'"),
        ("variable", "name", "other", "is only there"),
    ):
        graph = graph_from_bytes(entries["graph.pb"])
        graph.of_kind(op)[0].attrs[attr] = value
        path = write(tmp_path / "bad.job", {**entries, "graph.pb": graph_to_bytes(graph)})
        refuses(path, message)


# ---- tricks with the archive ---------------------------------------------------------------------


def zipped(path: Path, names: list[tuple[str, bytes]], **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in names:
            archive.writestr(zipfile.ZipInfo(name), content, options.get("compression"))
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_in_any_other_form(good: Path, tmp_path: Path) -> None:
    path, listed = tmp_path / "bad.job", list(entries_of(good).items())
    refuses(zipped(path, [*listed, listed[0]]), "graph.pb is there twice")
    for name in ("../x.pb", "/etc/x.pb", "data/../x.pb", "x", "DATA.PB", "data/", "a\\b.pb"):
        refuses(zipped(path, [*listed, (name, b"")]), "is no name of an entry")
    refuses(zipped(path, listed, compression=zipfile.ZIP_DEFLATED), "compressed, encrypted or")
    many = [(f"e{i}.bin", b"") for i in range(65)]
    refuses(zipped(path, many), "65 entries in a directory of")
    with zipfile.ZipFile(zipped(path, listed), "a") as archive:
        archive.comment = b"PK\5\6" + b"\0" * 18
    refuses(path, "is no job file|not where its end says")
    whole = good.read_bytes()
    path.write_bytes(whole[:-1])
    refuses(path, "no job file")
    path.write_bytes(b"PK\3\4" + whole)
    refuses(path, "not where its end says")
    refuses(tmp_path / "none.job", "No such file")
    refuses(tmp_path, "not a regular file|directory")


def test_a_bomb_is_refused_before_anything_is_unpacked(good: Path, tmp_path: Path) -> None:
    """An entry that claims a terabyte."""
    whole = bytearray(good.read_bytes())
    (start,) = struct.unpack_from("<I", whole, len(whole) - 6)
    struct.pack_into("<II", whole, start + 20, 0xFFFFFFF0, 0xFFFFFFF0)
    path = tmp_path / "bad.job"
    path.write_bytes(whole)
    refuses(path, "graph.pb")


@pytest.mark.parametrize("data", [(1, 2), {"x": [1.0]}, flow.ones(3, 4), 5])
def test_data_that_is_no_declaration_is_refused(data: Any, tmp_path: Path) -> None:
    class Train(flow.nn.Graph):
        def build(self, x: Any) -> Any:
            return x

    with pytest.raises(JobFileError, match=r"data is a .*flow.jobs.data.arrays"):
        Train().export(tmp_path / "a.job", data=data, steps=3)
    assert not list(tmp_path.iterdir())
