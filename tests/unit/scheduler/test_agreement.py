"""Compile rounds: one compile for equal digests, one clear error for different ones."""

from __future__ import annotations

from array import array

import pytest

from oneflow.core.errors import DesyncError, GraphError, PeerLostError
from oneflow.scheduler.agreement import (
    Agreement,
    AskNodeDigests,
    AskNodeText,
    CompileAsked,
    Compiled,
    CompileDropped,
    CompileFailed,
    FailCompile,
    NodeDigestsGiven,
    NodeTextGiven,
    SendPlan,
    StartCompile,
    first_difference,
)
from oneflow.scheduler.rendezvous import Tick
from oneflow.scheduler.store import RankGone


def asked(rank: int, digest: bytes = b"d", name: str = "Net", sequence: int = 0) -> CompileAsked:
    return CompileAsked(10 * sequence + rank, rank, sequence, name, digest, 30.0)


def nodes(*digests: int) -> bytes:
    return array("Q", digests).tobytes()


def message(actions: list) -> str:
    texts = {str(a.error) for a in actions if isinstance(a, FailCompile)}
    assert len(texts) == 1 and len(actions) > 1
    return texts.pop()


def test_equal_digests_compile_once_and_all_get_the_plan() -> None:
    machine = Agreement(3)
    assert machine.step(asked(2), 0.0) == [] == machine.step(asked(0), 0.0)
    assert machine.step(asked(1), 0.0) == [StartCompile(0, "Net", 0)]
    actions = machine.step(Compiled(0, b"plan"), 1.0)
    assert sorted(a.call for a in actions if isinstance(a, SendPlan)) == [0, 1, 2]


def test_an_error_of_the_compiler_reaches_all_unchanged() -> None:
    machine = Agreement(2)
    machine.step(asked(0), 0.0)
    machine.step(asked(1), 0.0)
    error = GraphError("node 3: no route")
    actions = machine.step(CompileFailed(0, error), 1.0)
    assert actions == [FailCompile(0, error), FailCompile(1, error)]


def test_first_differing_node_is_shown_with_each_rank_s_text() -> None:
    machine = Agreement(4)
    for rank in (0, 2, 3):
        machine.step(asked(rank, b"same"), 0.0)
    # One rank speaks for all that agree with it.
    assert machine.step(asked(1, b"other"), 0.0) == [AskNodeDigests(0), AskNodeDigests(1)]
    assert machine.step(NodeDigestsGiven(0, nodes(5, 6, 7)), 0.0) == []
    actions = machine.step(NodeDigestsGiven(1, nodes(5, 9, 7)), 0.0)
    assert actions == [AskNodeText(0, 1), AskNodeText(1, 1)]
    assert machine.step(NodeTextGiven(1, "gelu (train.py:9)"), 0.0) == []
    text = message(machine.step(NodeTextGiven(0, "relu (train.py:9)"), 0.0))
    assert "'Net': the ranks differ at node 1" in text
    assert "ranks 0, 2-3: relu (train.py:9)" in text and "rank 1: gelu (train.py:9)" in text


def test_a_graph_that_ends_early_says_so() -> None:
    machine = Agreement(2)
    machine.step(asked(0, b"long"), 0.0)
    machine.step(asked(1, b"short"), 0.0)
    machine.step(NodeDigestsGiven(0, nodes(1, 2)), 0.0)
    assert machine.step(NodeDigestsGiven(1, nodes(1)), 0.0) == [AskNodeText(0, 1)]
    text = message(machine.step(NodeTextGiven(0, "relu"), 0.0))
    assert "rank 1: no such node: its graph ends after 1 nodes" in text


def test_equal_nodes_with_different_digests_blame_the_rest() -> None:
    machine = Agreement(2)
    machine.step(asked(0, b"x"), 0.0)
    machine.step(asked(1, b"y"), 0.0)
    machine.step(NodeDigestsGiven(0, nodes(1)), 0.0)
    assert "configuration" in message(machine.step(NodeDigestsGiven(1, nodes(1)), 0.0))


def test_different_jobs_at_the_same_turn_are_an_error_at_once() -> None:
    machine = Agreement(3)
    machine.step(asked(0, name="Train"), 0.0)
    text = message(machine.step(asked(1, name="Eval"), 0.0))
    assert "rank 0: 'Train'; rank 1: 'Eval'" in text


def test_a_rank_that_never_asks_is_named_after_the_timeout() -> None:
    machine = Agreement(3)
    machine.step(asked(0), 0.0)
    machine.step(asked(1), 0.0)
    assert machine.step(Tick(), 29.0) == []
    actions = machine.step(Tick(), 30.0)
    assert all(isinstance(a.error, DesyncError) for a in actions if isinstance(a, FailCompile))
    assert "rank 2 did not ask for it within 30 s" in message(actions)


def test_a_long_compile_is_not_late() -> None:
    machine = Agreement(1)
    machine.step(asked(0), 0.0)
    assert machine.step(Tick(), 1000.0) == []


def test_a_rank_that_left_fails_rounds_that_need_it_only() -> None:
    machine = Agreement(2)
    machine.step(asked(0), 0.0)
    machine.step(asked(1), 0.0)  # round 0 is complete and compiles
    machine.step(asked(0, sequence=1), 0.0)
    (failed,) = machine.step(RankGone(1), 0.0)
    assert isinstance(failed, FailCompile) and failed.call == 10
    assert isinstance(failed.error, PeerLostError)
    assert len(machine.step(Compiled(0, b"plan"), 1.0)) == 2


def test_a_dropped_request_is_not_answered() -> None:
    machine = Agreement(2)
    machine.step(asked(0), 0.0)
    machine.step(CompileDropped(0), 0.0)
    assert machine.step(Tick(), 100.0) == []


@pytest.mark.parametrize(
    ("lists", "index"),
    [
        ([(1, 2, 3), (1, 2, 3)], None),
        ([(1, 2, 3), (1, 9, 3), (8, 2, 3)], 0),
        ([(1, 2), (1, 2, 3)], 2),
        ([(), (4,)], 0),
    ],
)
def test_first_difference(lists: list[tuple[int, ...]], index: int | None) -> None:
    assert first_difference([nodes(*digests) for digests in lists]) == index
