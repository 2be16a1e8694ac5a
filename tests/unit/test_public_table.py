"""The public table: every name it offers is there, and files made from it are up to date."""

from __future__ import annotations

import importlib.util
import inspect
import types
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.utils.prune  # PyTorch does not bring it along

import oneflow as flow
from oneflow import surfaces
from oneflow.api import MODULES, ROWS, SAME, Row
from oneflow.surfaces import IN_PLACE

ROOT = Path(__file__).resolve().parents[2]
SPACES = sorted(surfaces.index())
TORCH = {
    "flow": "",
    "tensor": "Tensor.",
    "F": "nn.functional.",
    "_C": "",
}


def _writer(name: str) -> types.ModuleType:
    """The program of docs/ that writes a page from the table."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("space", SPACES)
def test_every_name_of_a_namespace_is_there(space: str) -> None:
    for name in surfaces.names(space):
        assert surfaces.find(space, name) is not None, name


def test_dir_offers_only_what_is_there() -> None:
    for name in dir(flow):
        assert getattr(flow, name) is not None, name
    for name in dir(flow.nn.functional):
        assert callable(getattr(flow.nn.functional, name)), name


def test_no_two_rows_offer_one_name() -> None:
    seen: dict[tuple[str, str], Row] = {}
    for row in ROWS:
        for surface in row.surfaces:
            for name in row.names:
                place = (surface, name)
                assert place not in seen, f"{place}: {seen.get(place)} and {row}"
                seen[place] = row


def test_every_module_is_there() -> None:
    assert all(importlib.util.find_spec(f"oneflow.{name}") for name in MODULES)


def test_the_stubs_are_up_to_date() -> None:
    stubs = _writer("stubs")
    for space, path in stubs.STUBS.items():
        assert (ROOT / path).read_text() == stubs.render(space), f"{path}: run `make stubs`"


def test_the_reference_has_every_row_once() -> None:
    reference = _writer("reference")
    pages = reference.pages()
    for home in {row.home for row in ROWS}:
        rows = [row for row in ROWS if row.home == home]
        text = pages[f"{home.removeprefix('oneflow.')}.md"]
        assert text.count(":::{py:") - 1 == len({row.own for row in rows}), home
        assert all(reference.places(row) in text for row in rows), home


def test_no_public_function_of_the_library_lacks_a_row() -> None:
    offered = {(row.home, row.own) for row in ROWS}
    for topic in sorted((ROOT / "oneflow/functional").glob("nn_*.py")):
        module = importlib.import_module(f"oneflow.functional.{topic.stem}")
        for name, member in vars(module).items():
            own = inspect.isfunction(member) and member.__module__ == module.__name__
            if own and not name.startswith("_"):
                assert (module.__name__, name) in offered, f"{module.__name__}.{name}"


def counterpart(row: Row, surface: str, name: str) -> Any:
    """The counterpart in PyTorch of a row's name; None if it has nothing."""
    space = IN_PLACE.get(surface, surface)
    path = f"{TORCH.get(space, f'{space}.')}{name}" if row.torch == SAME else str(row.torch)
    try:
        return reduce(getattr, path.split("."), torch)
    except AttributeError:
        return None


def test_counterparts_in_torch_are_named_rightly() -> None:
    wrong = []
    for row in ROWS:
        found = [counterpart(row, s, row.names[0]) for s in row.surfaces]
        if row.torch is not None and all(f is None for f in found):
            wrong.append(f"{row.names[0]}: PyTorch has no {row.torch}; say torch=None")
    assert not wrong, wrong


def test_a_keyword_has_two_spellings() -> None:
    x = flow.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert flow.sum(x, axis=0, keepdims=True).tolist() == [[4.0, 6.0]]
    assert x.sum(dim=0, keepdim=True).tolist() == [[4.0, 6.0]]
    with pytest.raises(TypeError, match="mean the same"):
        x.sum(axis=0, dim=0)


def test_synonyms_are_one_function() -> None:
    assert flow.arccos is flow.acos
    assert flow.relu is flow.nn.functional.relu is flow._C.relu
    with pytest.raises(AttributeError, match="module 'oneflow' has no attribute 'no_such'"):
        flow.no_such  # noqa: B018
