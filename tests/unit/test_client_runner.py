"""The runner of `make clients`: files of clients, verdicts on values, and the table."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.clients.client import Client, all_clients, read
from tests.clients.records import BEGIN, END, PAGE, Record, plain, told, versions_told, write_table
from tests.clients.suites import named_versions, outcome_of_case
from tests.clients.verdict import Outcome, difference, outcome_of
from tests.clients.worker import packed, unpacked

FILE = """'''Trains a model, and\nsaves it.\n\nMore.'''
PACKAGES = "timm>=1.0 pillow"
REFUSED = {"task_b": "torch.fx"}
def task_a(torch): pass
def task_b(torch): pass
"""


def client(folder: Path, text: str = FILE) -> Client:
    (folder / "two_words.py").write_text(text)
    return read(folder / "two_words.py")


def test_every_client_of_the_repository_is_readable_and_in_the_table() -> None:
    clients = all_clients()
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    lines = {line.split("|")[1].strip() for line in table.strip().splitlines()}
    missing = [one.name for one in clients if one.name not in lines and not one.suite]
    assert not missing, "run `make clients`"


def test_a_file_declares_its_client(tmp_path: Path) -> None:
    found = client(tmp_path)
    assert (found.name, found.ran) == ("two-words", "Trains a model, and saves it")
    assert (found.tasks, found.packages) == (("task_a", "task_b"), ("timm>=1.0", "pillow"))
    assert found.refused == (("task_b", "torch.fx"),)


@pytest.mark.parametrize(
    "text", ["def task_a(torch): pass", "'''Doc.'''", FILE.replace('"task_b"', '"task_c"')],
    ids=["no docstring", "no task", "another task refused"],
)  # fmt: skip
def test_a_file_without_its_parts_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="needs a docstring"):
        client(tmp_path, text)


def test_values_come_back_as_they_were_packed() -> None:
    found = unpacked(packed({"a": [1.5, 2.0], "b": "text", "c": {"d": np.arange(3)}}))
    assert list(found) == ["a", "b", "c.d"]
    assert found["a"].tolist() == [1.5, 2.0]
    assert found["b"] == "text"
    assert found["c.d"].tolist() == [0, 1, 2]


def test_objects_are_no_values() -> None:
    with pytest.raises(TypeError, match="model is a object"):
        packed({"model": object()})


@pytest.mark.parametrize(
    ("theirs", "ours", "said"),
    [
        ([1.0, 100.0], [1.009, 100.0], ""),
        ([1.0, 100.0], [1.011, 100.0], "x is 0.00011 of the largest value apart"),
        ([1.0, np.inf], [1.0, np.inf], ""),
        ([1.0, np.inf], [1.0, 3.0], "x has infinite or undefined elements at other places"),
        ([1.0, 2.0], [np.nan, 2.0], "x is nan of the largest value apart"),
        ([1, 2], [1, 3], "x differs in 50% of its elements"),
        ([1, 2], [1.0, 2.0], "x is of float64, on PyTorch of int64"),
        ([1.0], [[1.0]], "x has shape (1, 1), on PyTorch (1,)"),
        ("abc", "abd", "x is 'abd', on PyTorch 'abc'"),
    ],
)
def test_values_are_compared(theirs: object, ours: object, said: str) -> None:
    assert difference({"x": np.asarray(theirs)}, {"x": np.asarray(ours)}, 1e-4) == said


def test_a_value_of_one_side_only_is_named() -> None:
    assert difference({"a": np.ones(1)}, {}, 1e-4) == "only one side has a"


def test_a_task_that_is_refused_must_stop(tmp_path: Path) -> None:
    one = client(tmp_path)
    ended = {"values": packed({"x": 1.0})}
    stops = outcome_of("task_b", one, ended, {"error": "OneFlowError: fx"})
    assert (stops.trouble, stops.refused) == ("", "refused (torch.fx)")
    assert "said to be refused" in outcome_of("task_b", one, ended, ended).trouble


def test_a_task_that_stops_on_pytorch_proves_nothing(tmp_path: Path) -> None:
    found = outcome_of("task_a", client(tmp_path), {"error": "KeyError: 1"}, {"error": "no"})
    assert found.trouble == "stops on PyTorch as well: KeyError: 1"


def test_a_cell_says_which_tasks_agree() -> None:
    good, other = Outcome("task_a", 3), Outcome("task_c", 2)
    bad = Outcome("task_bad_one", 0, "KeyError: 'x' @ file.py:3 < other.py:4")
    assert told([good]) == "agrees (3 values)"
    assert told([good, other]) == "all 2 tasks agree (5 values)"
    assert told([good, bad]) == (
        "1 of 2 tasks agree (3 values); bad one: KeyError: 'x' @ file.py:3 &lt; other.py:4"
    )
    refused = Outcome("task_r", refused="refused (torch.fx)")
    assert told([good, refused]) == "1 of 2 tasks agree (3 values); r: refused (torch.fx)"


def test_versions_stand_alone_of_a_package_by_its_own_name(tmp_path: Path) -> None:
    one = client(tmp_path)  # called two-words
    assert versions_told(one, {"two": "1.0", "pillow": "9"}) == "1.0"
    assert versions_told(one, {"timm": "1.0", "pillow": "9"}) == "timm 1.0, pillow 9"
    assert versions_told(one, {}) == "-"


def test_a_cell_has_no_folder_of_this_machine() -> None:
    assert plain("no file\n'/tmp/x-1/lib/a.py', see a/b") == "no file 'a.py', see a/b"


def test_cases_of_a_suite_become_outcomes() -> None:
    report = """<testsuite><testcase name="test_a" /><testcase name="test_b"><failure
    message="assert 1 == 2" /></testcase><testcase name="test_c"><skipped message="no folder" />
    </testcase></testsuite>"""
    cases = [outcome_of_case(one) for one in ElementTree.fromstring(report).iter("testcase")]
    assert [one.name for one in cases] == ["a", "b", "c"]
    assert [one.trouble for one in cases] == ["", "assert 1 == 2", ""]
    assert [one.refused for one in cases] == ["", "", "not run: no folder"]
    assert told(cases) == "1 of 3 tasks agree; c: not run: no folder; b: assert 1 == 2"


def test_a_suite_has_no_tasks(tmp_path: Path) -> None:
    text = "'''Models.'''\nPACKAGES = 'timm==1.0 x'\nSUITE = 'timm'\n"
    found = client(tmp_path, text)
    assert (found.suite, found.tasks) == ("timm", ())
    assert named_versions(found) == {"timm": "1.0", "x": "main"}
    with pytest.raises(ValueError, match="needs a docstring"):
        client(tmp_path, text + "def task_a(torch): pass\n")


def test_a_table_keeps_clients_that_did_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    old = "| b | 1 | ran | agrees | day |\n| gone | 1 | ran | agrees | day |"
    head = "| client | version | what ran | result | date |\n|---|---|---|---|---|"
    page.write_text(f"before\n{BEGIN}\n{head}\n{old}\n{END}\nafter\n")
    record = Record("a", "", "2", "sentence", "agrees", "today", 1.0, True)
    write_table([record], ["a", "b"], page)
    rows = "| a | 2 | sentence | agrees | today |\n| b | 1 | ran | agrees | day |"
    assert page.read_text() == f"before\n{BEGIN}\n{head}\n{rows}\n{END}\nafter\n"
