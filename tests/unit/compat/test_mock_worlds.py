"""One package on two libraries: the modules of a mock and the real ones never meet."""

from __future__ import annotations

import gc
import importlib
import itertools
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import oneflow as flow
from oneflow.compat.torch.mock import switching
from oneflow.compat.torch.mock.dependants import dependants
from oneflow.core.errors import OneFlowError
from oneflow.mock_torch import DynamicMockModule, disable, enable

REAL = torch.nn.Module  # a class: global names of modules change with the world

FILES = {
    "pka/__init__.py": "import torch\nclass A(torch.nn.Module): pass\n",
    "pka/plain.py": "VALUE = 1\n",
    "pkb/__init__.py": "import torch, pka\nclass B(pka.A): pass\n",
    "pkb/below.py": "from pkb import B\nclass C(B): pass\n",
    "pkc/__init__.py": "from pka import A\nclass D(A): pass\n",  # without a word of torch
    "pkplain.py": "class Shared: pass\n",
    "pkfails/__init__.py": "import torch\nfrom . import good\nimport no_such_package\n",
    "pkfails/good.py": "VALUE = 2\n",
}


@pytest.fixture(params=["distributions", "files"])
def packages(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The packages, installed or lying in a folder; no world remembers those of other tests."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    if request.param == "distributions":
        for name, needs in {"pka": ["torch"], "pkb": ["torch", "pka"], "pkc": ["pka"]}.items():
            info = tmp_path / f"{name}-1.0.dist-info"
            info.mkdir()
            lines = "".join(f"Requires-Dist: {need}\n" for need in needs)
            (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(switching, "_switch", switching._Switch())
    dependants.cache_clear()
    yield
    disable()
    for name in [name for name in sys.modules if name.startswith("pk") and name != "pkg_resources"]:
        del sys.modules[name]
    assert is_real()
    dependants.cache_clear()


def is_real() -> bool:
    return sys.modules["torch"].nn.Module is REAL


def loaded() -> dict[str, ModuleType]:
    """The modules that are of one world; others may come whenever one needs them."""
    both = ("torch", "pk")
    return {n: m for n, m in list(sys.modules.items()) if n.startswith(both) and n != "pkgutil"}


def mocked(package: str, name: str) -> Any:
    return getattr(DynamicMockModule.from_package(package), name)


ASKED = {"pka": ("pka", "A"), "pkb": ("pkb", "B"), "below": ("pkb", "below"), "pkc": ("pkc", "D")}


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("are_loaded", [True, False], ids=["loaded before", "not loaded"])
def test_any_order_of_packages_gives_the_same_classes(are_loaded: bool) -> None:
    if are_loaded:
        for name in ("pka", "pkb", "pkb.below", "pkc"):
            importlib.import_module(name)
    before = loaded()
    first: dict[str, Any] = {}
    for order in list(itertools.permutations(ASKED))[::5]:  # each is the first of one, at least
        for asked in order:
            found = mocked(*ASKED[asked])
            found = found.C if asked == "below" else found
            assert issubclass(found, flow.nn.Module)
            assert first.setdefault(asked, found) is found
            assert loaded() == before
    assert first["below"].__mro__[1:3] == (first["pkb"], first["pka"])
    assert first["pkc"].__mro__[1] is first["pka"]


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("first", ["pka", "pkb", "pkc"])
@pytest.mark.parametrize("are_loaded", [True, False], ids=["loaded before", "not loaded"])
def test_each_first_package_brings_classes_of_the_mock(first: str, are_loaded: bool) -> None:
    if are_loaded:
        real = importlib.import_module("pkb").B
    assert issubclass(mocked(*ASKED[first]), flow.nn.Module)
    assert mocked("pkb", "B").__mro__[1] is mocked("pka", "A")
    assert issubclass(importlib.import_module("pkc").D, REAL)
    assert not are_loaded or importlib.import_module("pkb").B is real


@pytest.mark.usefixtures("packages")
def test_nested_worlds_come_back_in_turn() -> None:
    real = importlib.import_module("pkb")
    before = loaded()
    with enable(main_pkg="pkb"):
        outer = importlib.import_module("pkb")
        with enable(lazy=True, main_pkg="pkb"):
            inner = importlib.import_module("pkb")
            with disable():
                assert importlib.import_module("pkb") is real
                assert is_real()
            assert importlib.import_module("pkb") is inner
        assert importlib.import_module("pkb") is outer is not inner
        assert sys.modules["pka"].A is outer.B.__mro__[1]
    assert loaded() == before


@pytest.mark.usefixtures("packages")
def test_a_module_of_the_real_world_does_not_hide_that_of_a_mock() -> None:
    with enable():
        ours = importlib.import_module("pkb")
    real = importlib.import_module("pkb.below")  # its name is unknown to the mock
    assert issubclass(real.C, REAL)
    with enable():
        assert importlib.import_module("pkb.below").C.__mro__[1] is ours.B
    assert sys.modules["pkb.below"] is real


@pytest.mark.usefixtures("packages")
def test_a_package_that_uses_no_mocked_library_is_one_in_all_worlds() -> None:
    with enable():
        inside = importlib.import_module("pkplain")
    assert importlib.import_module("pkplain") is inside


@pytest.mark.usefixtures("packages")
def test_an_import_that_fails_leaves_nothing_in_the_real_world() -> None:
    before = loaded()
    for world in (enable, disable):
        with world(), pytest.raises(ModuleNotFoundError, match="no_such_package"):
            importlib.import_module("pkfails")
        if world is enable:
            assert loaded() == before
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        DynamicMockModule.from_package("pkfails")
    assert is_real()


@pytest.mark.usefixtures("packages")
def test_an_error_inside_ends_a_world() -> None:
    with pytest.raises(ZeroDivisionError), enable(main_pkg="pkb"):
        importlib.import_module("pkb")
        1 / 0  # noqa: B018
    assert issubclass(importlib.import_module("pkb").B, REAL)


@pytest.mark.usefixtures("packages")
def test_threads_that_ask_at_the_same_time_get_one_world(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"pkmany{number}.py").write_text("import json\n")
    real = importlib.import_module("pkb").B
    found: list[Any] = []
    errors: list[BaseException] = []

    def ask(package: str, name: str, **options: bool) -> None:
        try:
            for _ in range(10):
                made = DynamicMockModule.from_package(package, **options)
                found.append((name, options.get("verbose"), getattr(made, name)))
        except BaseException as error:
            errors.append(error)

    def load() -> None:
        try:
            for number in range(40):
                importlib.import_module(f"pkmany{number}")
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=ask, args=("pka", "A")),
        threading.Thread(target=ask, args=("pkb", "B")),
        threading.Thread(target=ask, args=("pkb", "B"), kwargs={"verbose": True}),
        threading.Thread(target=load),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(found) == 30 and len(set(found)) == 3
    assert all(issubclass(made, flow.nn.Module) for _, _, made in found)
    assert importlib.import_module("pkb").B is real and is_real()


class _Importing:
    """Garbage that takes part of a thread that imports: a module comes when it is collected."""

    def __init__(self, name: str) -> None:
        self.name, self.itself = name, self

    def __del__(self) -> None:
        sys.modules[self.name] = ModuleType(self.name)


@pytest.mark.usefixtures("packages")
def test_modules_may_come_while_a_world_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4_000):  # pairs of so many are new objects, so that garbage is collected
        name = f"pkpad{number}"
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    importlib.import_module("pkb")
    for number in range(20):
        _Importing(f"pkcame{number}")
    with enable():
        importlib.import_module("pkb")
    gc.collect()
    assert "pkcame19" in sys.modules and is_real()


@pytest.mark.usefixtures("packages")
def test_a_search_for_a_module_goes_on_while_a_world_begins_and_ends() -> None:
    searched = sys.meta_path  # as the import of another thread holds it
    before = list(searched)
    with enable():
        assert searched == before
        searched = sys.meta_path
        before = list(searched)
    assert searched == before


@pytest.mark.usefixtures("packages")
def test_blocks_of_threads_may_end_in_any_order() -> None:
    began, ended = threading.Event(), threading.Event()

    def other() -> None:
        with enable():
            began.set()
            ended.wait(60)

    thread = threading.Thread(target=other)
    with enable():
        thread.start()
        assert began.wait(60)
    assert not is_real()  # the other block is open
    ended.set()
    thread.join()
    assert is_real()


@pytest.mark.usefixtures("packages")
def test_a_thread_that_would_wait_for_ever_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switching, "WAIT_LIMIT_S", 0.05)
    errors: list[str] = []

    def other() -> None:
        try:
            disable()
        except OneFlowError as error:
            errors.append(str(error))

    with enable():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(errors) == 1 and "another thread has been in a with-block" in errors[0]


def test_imports_of_source_files_name_what_a_package_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pksource.py").write_text(
        textwrap.dedent(
            """
            import os, pkx.sub as sub, pky
            from pkz.part import name
            from .own import other
            if True:
                import pkw
            """
        )
    )
    for name in ("pkx", "pky", "pkz", "pkw", "own"):
        (tmp_path / f"{name}.py").write_text("import torch\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    wanted = ("pkw", "pkx", "pky", "pkz")
    assert dependants("pksource", frozenset({"torch"})) == wanted


def test_a_view_leads_to_ours_after_the_mock_has_ended() -> None:
    """Functions of a mocked program run later: `torch.nn.functional.gelu` in a forward pass."""
    with enable():
        view = importlib.import_module("torch")
    assert view.nn.functional.gelu is flow.nn.functional.gelu
    assert view.nn.functional is view.nn.functional
    real = importlib.import_module("torch.nn.functional")
    assert real is not view.nn.functional and real.gelu is not flow.nn.functional.gelu
