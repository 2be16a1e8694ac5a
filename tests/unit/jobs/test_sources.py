"""Input pipelines over files, compared with NumPy's reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.jobs import JobFileError
from oneflow.jobs.sources import Access, allowed, open_data

X = np.arange(24, dtype=np.float32).reshape(8, 3) / 7
Y = np.arange(8, dtype=np.int64) * 3


def opened(declared: Any) -> dict[str, Any]:
    """The columns, from the files if there are any."""
    if declared.spec.kind == "arrays":
        return dict(declared.arrays)
    return open_data(declared.spec, Access())


def declarations(folder: Path, embed: bool) -> dict[str, Any]:
    d = flow.jobs.data
    np.savez(folder / "a.npz", images=X, labels=Y)
    np.savez_compressed(folder / "c.npz", images=X, labels=Y)
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    X.tofile(folder / "x.bin")
    (folder / "y.bin").write_bytes(b"head" + Y.tobytes())
    lines = ["a,label,b,c", *(f"{x[0]},{y},{x[1]},{x[2]}" for x, y in zip(X, Y, strict=True))]
    (folder / "d.csv").write_text("\n".join(lines) + "\n\n")
    write_safetensors(folder / "d.safetensors")
    return {
        "npz": d.npz(folder / "a.npz", x="images", y="labels", embed=embed),
        "npz packed": d.npz(folder / "c.npz", x="images", y="labels", embed=embed),
        "npy": d.npy(x=folder / "x.npy", y=folder / "y.npy", embed=embed),
        "safetensors": d.safetensors(folder / "d.safetensors", x="p", y="q", embed=embed),
        "csv": d.csv(
            folder / "d.csv", x=["a", "b", "c"], y="label", types={"y": "int64"}, embed=embed
        ),
        "raw": d.raw(
            x=(folder / "x.bin", "float32", (3,)),
            y=(folder / "y.bin", flow.int64, (), 4),
            embed=embed,
        ),
    }


def write_safetensors(path: Path) -> None:
    from oneflow.io.container import Writer

    with path.open("wb") as file:
        writer = Writer(file, {"p": (X.dtype, X.shape), "q": (Y.dtype, Y.shape)}, {})
        writer.add("p", X)
        writer.add("q", Y)


@pytest.mark.parametrize("embed", [False, True])
def test_every_kind_of_file_gives_its_rows(tmp_path: Path, embed: bool) -> None:
    for name, declared in declarations(tmp_path, embed).items():
        assert declared.spec.rows == 8 and (declared.spec.kind == "arrays") is embed, name
        columns = opened(declared)
        np.testing.assert_array_equal(columns["x"], X, err_msg=name)
        np.testing.assert_array_equal(columns["y"], Y, err_msg=name)
        assert columns["x"].dtype == X.dtype and columns["y"].dtype == Y.dtype


def test_rows_are_mapped_and_not_read(tmp_path: Path) -> None:
    for name, declared in declarations(tmp_path, embed=False).items():
        assert isinstance(opened(declared)["x"], np.memmap), name


def test_a_file_that_changed_since_is_refused(tmp_path: Path) -> None:
    declared = declarations(tmp_path, embed=False)["npy"]
    np.save(tmp_path / "x.npy", X[:5])
    with pytest.raises(JobFileError, match=r"column 'x'.*float32\[5, 3\].*float32\[8, 3\]"):
        opened(declared)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3\n", "d.csv:3 has 1 fields"),
        ("a,b\n1,x\n", "lines 2 to 2: could not convert"),
        ("a,c\n1,2\n", "0 columns named 'b'"),
        ("a,b,b\n1,2,3\n", "2 columns named 'b'"),
        ("a,b\n", "equally many rows, at least one|rows: 0 must be"),
        ('a,b\n"' + "x" * 70000 + '",2\n', "field larger than field limit"),
    ],
)
def test_csv_that_is_none(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(JobFileError, match=message):
        flow.jobs.data.csv(tmp_path / "d.csv", x=["a", "b"])


def test_arrays_of_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(JobFileError, match="cannot be data"):
        flow.jobs.data.npy(x=tmp_path / "o.npy")


def test_columns_must_fit_together() -> None:
    with pytest.raises(JobFileError, match=r"equally many rows.*x: 8, y: 7"):
        flow.jobs.data.arrays(x=X, y=Y[:7])
    with pytest.raises(JobFileError, match="rows of numbers"):
        flow.jobs.data.arrays(x=np.float32(3))
    with pytest.raises(JobFileError, match="batch: 9"):
        flow.jobs.data.arrays(x=X).batch(9)


def test_only_files_that_the_operator_allows(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    for folder in (inside, outside):
        (folder / "x").write_bytes(b"1")
    (inside / "link").symlink_to(outside / "x")
    assert allowed(str(inside / "x"), (inside,)) == inside / "x"
    for path in (outside / "x", inside / "link", inside / ".." / "out" / "x"):
        with pytest.raises(JobFileError, match="ONEFLOW_DATA_ROOTS"):
            allowed(str(path), (inside,))
    with pytest.raises(JobFileError, match="absolute"):
        allowed("x", None)
    with pytest.raises(JobFileError, match="not a file"):
        allowed(str(inside), (inside,))
