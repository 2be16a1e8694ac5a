"""`python -m oneflow.boxing`: it prints the planner's choices; mistakes are one line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from oneflow.boxing.__main__ import main
from oneflow.boxing.bound import lower_bound_nbytes
from oneflow.boxing.notation import parse_change
from oneflow.boxing.route import boxing_bytes, choose_route
from oneflow.boxing.view import explain
from oneflow.core.dtype import float32
from oneflow.core.tensor_type import TensorType

TYPE = TensorType((64, 48), float32)
CHANGES = [
    "S0,B@2x2 -> B,S1", "P@4 -> B", "P@[0,1] -> B@[2,3,4]", "S0,S1@2x2 -> S1,S0", "S0@4 -> B@2",
    "B@4 -> P", "S0@4 -> S0", "P,S0@2x3 -> S1@4",
]  # fmt: skip


@pytest.mark.parametrize("text", CHANGES)
def test_the_view_tells_what_the_planner_does(text: str) -> None:
    change = parse_change(text)
    layouts = change.src_sbp, change.src_placement, change.dst_sbp, change.dst_placement
    view = explain(TYPE, change)
    chosen = view.routes[0]
    assert tuple(s.step for s in chosen.steps) == choose_route(TYPE, *layouts)
    assert chosen.nbytes == boxing_bytes(TYPE, *layouts)
    assert view.bound_nbytes == lower_bound_nbytes(TYPE, *layouts)
    assert all(s.busiest_nbytes <= s.nbytes for r in view.routes for s in r.steps)
    others = [r.seconds for r in view.routes[1:]]
    assert others == sorted(others)
    assert len({tuple(s.step for s in r.steps) for r in view.routes}) == len(view.routes)


def test_the_text_has_steps_totals_bound_and_losers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["S0,B@2x2 -> B,S1", "--shape", "64,48"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "float32[64, 48], 12,288 bytes, over shared memory"
    assert "(S(0), B)@cpu[[0, 1], [2, 3]]" in lines[1]
    assert any(line.split()[:2] == ["1", "transfer"] for line in lines)
    assert any(line.split()[:3] == ["in", "all", "12,288"] for line in lines)
    assert any(line.split()[:3] == ["lower", "bound", "12,288"] for line in lines)
    assert any(line.startswith("slice ") for line in lines)


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["P@2 -> S0", "--shape", "8,4", "--dtype", "float64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["type"] == "float64[8, 4]" and found["lower_bound_bytes"] == 256
    (step,) = found["chosen"]["steps"]
    assert step["kind"] == "reduce_scatter"
    assert (step["bytes"], step["busiest_rank_bytes"]) == (256, 128)
    assert found["chosen"]["seconds"] == pytest.approx(step["seconds"])
    assert [a["route"] for a in found["alternatives"]]


def test_ranks_of_several_hosts_are_slower(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = []
    for hosts in ("4", "2"):
        assert main(["S0@4 -> B", "--hosts", hosts, "--json"]) == 0
        seconds.append(json.loads(capsys.readouterr().out)["chosen"]["seconds"])
    assert seconds[0] < seconds[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["S0@4"], "no '->'"),
        (["S2@4 -> B"], "S(2) needs a tensor of at least 3 dims"),
        (["S0@4 -> B", "--shape", "3;4"], "'3;4' is no size"),
        (["S0@4 -> B", "--dtype", "float31"], "float31"),
        (["P@4 -> B", "--dtype", "bool"], "sum of booleans"),
        (["S0@4 -> B", "--hosts", "1,2"], "hosts for 3 ranks, but 4 are named"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1
    assert said in captured.err and captured.err.startswith("python -m oneflow.boxing: ")


@pytest.mark.parametrize("arguments", [[], ["S0@4 -> B", "--shap"], ["S0@4 -> B", "--bytes"]])
def test_a_wrong_call_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_help_shows_the_notation(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert "P@[0,1] -> S0@[2,3,4]" in out and "--hosts" in out


def test_it_starts_without_what_it_does_not_need() -> None:
    code = (
        "import sys; from oneflow.boxing.__main__ import main; main(['S0@4 -> B']); "
        "heavy = {'numba', 'grpc', 'torch', 'cupy', 'google.protobuf'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
