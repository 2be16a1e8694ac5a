"""Models of a folder's hubconf.py, and files by their address."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import oneflow as flow
from oneflow.compat.torch import hub


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "hubconf.py").write_text(
        "import oneflow as flow\n\n"
        "def tiny(size, bias=True):\n    '''A tiny model.'''\n"
        "    return flow.nn.Linear(size, 1, bias=bias)\n\n"
        "def _hidden():\n    pass\n"
    )
    return str(tmp_path)


def test_a_folder_offers_its_functions(folder: str) -> None:
    assert flow.hub.list(folder) == ["tiny"]
    assert flow.hub.help(folder, "tiny") == "A tiny model."
    assert flow.hub.load(folder, "tiny", 3, bias=False, source="local").bias is None
    with pytest.raises(RuntimeError, match="Cannot find callable other"):
        flow.hub.load(folder, "other", source="local")


def test_repositories_are_not_fetched() -> None:
    with pytest.raises(flow.core.errors.OneFlowError, match="clone it"):
        flow.hub.load("someone/models", "tiny", source="github")
    with pytest.raises(ValueError, match="Unknown source"):
        flow.hub.load(".", "tiny", source="elsewhere")


def test_weights_by_their_address(tmp_path: Path) -> None:
    flow.save({"w": flow.tensor([1.0, 2.0])}, tmp_path / "weights")
    digest = hashlib.sha256((tmp_path / "weights").read_bytes()).hexdigest()
    named = tmp_path / f"tiny-{digest[:8]}.pth"
    (tmp_path / "weights").rename(named)
    url = named.as_uri()
    cache = tmp_path / "cache"
    found = flow.hub.load_state_dict_from_url(url, cache, check_hash=True)
    assert found["w"].tolist() == [1.0, 2.0]
    named.unlink()  # from now on it comes from the cache
    assert flow.utils.model_zoo.load_url(url, cache)["w"].tolist() == [1.0, 2.0]


def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    target = tmp_path / "b"
    with pytest.raises(RuntimeError, match="invalid hash value"):
        flow.hub.download_url_to_file((tmp_path / "a").as_uri(), target, hash_prefix="00000000")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_address_that_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(flow.core.errors.OneFlowError, match="cannot be fetched"):
        flow.hub.download_url_to_file((tmp_path / "none").as_uri(), tmp_path / "b")


def test_the_folder_of_fetched_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_folder", None)
    monkeypatch.setenv("ONEFLOW_HOME", str(tmp_path))
    assert flow.hub.get_dir() == str(tmp_path / "hub")
    flow.hub.set_dir(tmp_path / "other")
    assert flow.hub.get_dir() == str(tmp_path / "other")
