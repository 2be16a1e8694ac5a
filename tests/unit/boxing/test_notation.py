"""Notation of changes of layout, and the errors for texts that are none."""

from __future__ import annotations

import pytest

from oneflow.boxing.notation import NotationError, parse_change, parse_hosts, parse_shape
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, Split

S0, S1, B, P = Split(0), Split(1), BROADCAST, PARTIAL
LINE, GRID = Placement("cpu", [0, 1, 2, 3]), Placement("cpu", [[0, 1], [2, 3]])


@pytest.mark.parametrize(
    ("text", "src", "dst"),
    [
        ("S0@4 -> B", ((S0,), LINE), ((B,), LINE)),
        ("S0,B@2x2 -> B,S1@2x2", ((S0, B), GRID), ((B, S1), GRID)),
        ("p@4->s( 1 )@4", ((P,), LINE), ((S1,), LINE)),
        ("B@[2,3] -> P@[7]", ((B,), Placement("cpu", [2, 3])), ((P,), Placement("cpu", [7]))),
        ("B,P@[[0,1],[2,3]] -> S0@4", ((B, P), GRID), ((S0,), LINE)),
        (
            "S0@cuda:2 -> B@cuda[0, 1]",
            ((S0,), Placement("cuda", [0, 1])),
            ((B,), Placement("cuda", [0, 1])),
        ),
        ("S0@cpu:4 -> B@cuda:[2,3]", ((S0,), LINE), ((B,), Placement("cuda", [2, 3]))),
        ("B,B,S0@2x2x2 -> P,B,B", ((B, B, S0), None), ((P, B, B), None)),
    ],
)
def test_what_can_be_written(text: str, src: tuple, dst: tuple) -> None:  # type: ignore[type-arg]
    change = parse_change(text)
    assert (change.src_sbp, change.dst_sbp) == (src[0], dst[0])
    cube = Placement("cpu", [[[0, 1], [2, 3]], [[4, 5], [6, 7]]])
    assert change.src_placement == (src[1] or cube)
    assert change.dst_placement == (dst[1] or cube)


def test_layouts_as_graphs_print_them_are_understood() -> None:
    change = parse_change(f"(S(0), B)@{GRID.notation} -> S(1)@{LINE.notation}")
    assert change == parse_change("S0,B@2x2 -> S1@4")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("S0@4", r"no '->' between two layouts \(column 5 of 'S0@4'\)"),
        ("S0@4 -> B -> P", r"a second '->'; .* \(column 11 of"),
        ("S0 -> B@4", r"no '@' and where: .* \(column 4 of"),
        ("@4 -> B", r"an sbp is missing: B, P or S0 \(column 1 of"),
        ("S0@4 -> Q", r"'Q' is no sbp; one is B, P or S0 \(column 9 of"),
        ("S0,@2x2 -> B", r"nothing is no sbp; .* \(column 4 of"),
        ("S0 B@2x2 -> B", r"a comma or '@' should be here, not 'B' \(column 4 of"),
        ("S9@2 -> B", r"less than the supported maximum axis .* \(column 1 of"),
        ("S0@4 -> S0,B", r"2 sbp for 1 axes of cpu\[0, 1, 2, 3\]; .* \(column 9 of"),
        ("S0@ -> B", r"'' is neither 4, 2x2 nor \[2,3\] \(column 5 of"),
        ("S0@0 -> B", r"0 ranks; give 1 to 4096 \(column 4 of"),
        ("S0@99999999 -> B", r"99999999 ranks; give 1 to 4096"),
        ("S0@gpu:2 -> B", r"'gpu' is no device type; it is cpu or cuda \(column 4 of"),
        ("S0@cuda2 -> B", r"'cuda2' is no device type"),
        ("S0@cuda 2 -> B", r"say cuda:4, cuda:2x2 or cuda\[0,1\] \(column 9 of"),
        ("S0@[1,1] -> B", r"'\[1,1\]' names a rank twice \(column 4 of"),
        ("S0@[1,x] -> B", r"'\[1,x\]' is no list of ranks \(column 4 of"),
        ("S0@[1.5] -> B", r"is no list of 1 to 4096 ranks"),
        ("S0@[] -> B", r"is no list of 1 to 4096 ranks"),
        ("S0@[[1,2],[3]] -> B", r"is no list of ranks"),
        ("S0@[-1,2] -> B", r"must not be negative"),
    ],
)
def test_mistakes_are_named_with_their_place(text: str, said: str) -> None:
    with pytest.raises(NotationError, match=said):
        parse_change(text)


def test_shapes() -> None:
    assert parse_shape("1024, 64") == parse_shape("1024x64") == (1024, 64)
    assert parse_shape("") == ()
    with pytest.raises(NotationError, match=r"'a' is no size; .* \(column 3 of '3,a'\)"):
        parse_shape("3,a")


def test_hosts() -> None:
    assert parse_hosts("2", 5) == (0, 0, 1, 1, 2)
    assert parse_hosts("2x4", 8) == (0, 0, 0, 0, 1, 1, 1, 1)
    assert parse_hosts("3,1", 4) == (0, 0, 0, 1)
    assert parse_hosts("3, 5", 4) == (0, 0, 0, 1)
    for text, said in (
        ("", "is not 2"), ("a", "is not 2"), ("2,x", "is not 2"), ("0", "1 rank or more"),
        ("1,1", "hosts for 2 ranks, but 4 are named"), ("2x2x2", "two numbers"),
    ):  # fmt: skip
        with pytest.raises(NotationError, match=said):
            parse_hosts(text, 4)
