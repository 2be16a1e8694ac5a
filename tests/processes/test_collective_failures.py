"""Eager collectives of ranks that disagree, die or stop: the rank that is named, the end of the
job.

Every run is checked for the promises after any failure: no process, no shared memory and no
temporary folder of the job left. The time-out is far away, so an end in time was no time-out.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oneflow.scheduler.ports import free_port
from tests.support.jobs import QUICK, Ended, Jobs

PROGRAM = Path(__file__).with_name("collective_failures_program.py")
LINES = PROGRAM.read_text().splitlines()
ADVICE = "Maybe executing different code in different ranks, please check if the code is branched"
FAR_AWAY = {"ONEFLOW_TIMEOUT_SECONDS": "300"}
LATER = pytest.mark.slow
NEAR = ["near", pytest.param("far", marks=LATER)]  # CI has the other kinds of failure far
FAR = ["far", pytest.param("near", marks=LATER)]


def launch(jobs: Jobs, num_ranks: int, *args: str, **more: str) -> Ended:
    """A job as the launcher runs it: one exit code and one cause."""
    flags = ["--standalone", "--nproc_per_node", str(num_ranks), "--grace-period", "1"]
    command = ["-m", "oneflow.distributed.launch", *flags, str(PROGRAM), *args]
    return jobs.finish(jobs.start(*command, **FAR_AWAY, **more))


def alone(jobs: Jobs, num_ranks: int, *args: str) -> list[Ended]:
    """Ranks without a launcher: each has its own exit code and its own last line."""
    world = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(num_ranks),
    }
    ranks = [
        jobs.start(str(PROGRAM), *args, **FAR_AWAY, **world, RANK=str(r), LOCAL_RANK=str(r))
        for r in range(num_ranks)
    ]
    return [jobs.finish(rank) for rank in ranks]


def at(text: str) -> str:
    """`program.py:line` of the line of the program that holds `text`."""
    (found,) = [i for i, line in enumerate(LINES, 1) if text in line]
    return f"{PROGRAM.name}:{found}"


def said(ended: Ended) -> str:
    """The error of a rank: its last line, or the line of the traceback that names it."""
    return next(t for t in reversed(ended.err.splitlines()) if re.search(r"\w+Error: ", t))


# ---- a rank is lost ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "num_ranks", "victim"),
    [
        ("far", 2, 0),
        pytest.param("near", 3, 2, marks=LATER),
        pytest.param("near", 2, 0, marks=LATER),
        pytest.param("far", 3, 1, marks=LATER),
    ],
)
def test_a_rank_killed_in_a_collective_is_named_by_all(
    jobs: Jobs, place: str, num_ranks: int, victim: int
) -> None:
    ended = alone(jobs, num_ranks, "lost", place, "kill", str(victim))
    for rank, one in enumerate(ended):
        assert one.code == (-9 if rank == victim else 85), one.err
        if rank != victim:
            assert f"oneflow: PeerLostError: rank {victim} " in said(one), one.err
            assert PROGRAM.name in said(one) and "Traceback" not in one.err


@pytest.mark.parametrize("place", NEAR)
def test_the_launcher_names_the_signal(jobs: Jobs, place: str) -> None:
    ended = launch(jobs, 3, "lost", place, "kill", "1")
    assert ended.code == 137 and "reason=SIGNAL rank=1 " in ended.line


@pytest.mark.parametrize(("place", "victim"), [("near", 0), ("far", 1)])
def test_a_rank_that_dies_where_the_others_still_have_to_come(
    jobs: Jobs, place: str, victim: int
) -> None:
    ended = alone(jobs, 2, "killed_in_waiting", place, str(victim))
    assert ended[victim].code == -9 and ended[1 - victim].code == 85, ended
    assert f"PeerLostError: rank {victim} " in said(ended[1 - victim])


@pytest.mark.parametrize(
    ("place", "victim"), [("near", 0), ("far", 1), pytest.param("near", 1, marks=LATER)]
)
def test_a_stopped_rank_is_lost_when_its_heartbeats_stay_away(
    jobs: Jobs, place: str, victim: int
) -> None:
    ended = launch(jobs, 2, "lost", place, "stop", str(victim), **QUICK)
    assert ended.code == 85 and f"rank {victim} (host" in ended.line, ended.err
    assert "is gone" in ended.line and "Traceback" not in ended.err


@pytest.mark.slow
def test_a_stopped_rank_is_lost_after_ten_seconds_of_silence_by_default(jobs: Jobs) -> None:
    ended = launch(jobs, 2, "lost", "near", "stop", "1")
    assert ended.code == 85 and "rank 1 (host" in ended.line, ended.err


@pytest.mark.parametrize(("place", "num_ranks"), [("near", 2), pytest.param("far", 3, marks=LATER)])
def test_an_error_on_one_rank_ends_the_others(jobs: Jobs, place: str, num_ranks: int) -> None:
    ended = alone(jobs, num_ranks, "lost", place, "raise", "1")
    for rank, one in enumerate(ended):
        assert one.code == (1 if rank == 1 else 85), one.err
        if rank != 1:
            assert "oneflow: PeerLostError: rank 1 on host" in said(one), one.err
            assert "ValueError: boom" in said(one) and PROGRAM.name in said(one)
            assert "Traceback" not in one.err
    job = launch(jobs, num_ranks, "lost", place, "raise", "1")
    assert job.code == 1 and "reason=USER_ERROR rank=1 " in job.line
    assert f"ValueError: boom ({at('raise ValueError')})" in job.line


@pytest.mark.parametrize(
    ("place", "num_ranks", "victim"),
    [("near", 2, 0), ("far", 2, 1), pytest.param("near", 3, 1, marks=LATER)],
)
def test_leaving_with_0_while_others_are_in_a_collective(
    jobs: Jobs, place: str, num_ranks: int, victim: int
) -> None:
    ended = alone(jobs, num_ranks, "lost", place, "exit", str(victim))
    for rank, one in enumerate(ended):
        assert one.code == (0 if rank == victim else 85), one.err
    survivors = [said(one) for rank, one in enumerate(ended) if rank != victim]
    text = f"PeerLostError: rank {victim} exited 0 while peers run"
    assert any(text in line and ADVICE in line for line in survivors), survivors
    if place == "near":
        assert any(re.search(r"\(rank \d was in all_reduce", line) for line in survivors), survivors


# ---- ranks that do different things --------------------------------------------------------------


def check_desync(ended: list[Ended], *texts: str) -> None:
    """All ranks end as desynchronised, and one of them shows a traceback."""
    assert [one.code for one in ended] == [81] * len(ended), [one.err for one in ended]
    for one in ended:
        assert "DesyncError: the ranks [" in said(one) and ADVICE in said(one), one.err
        for text in texts:
            assert re.search(text, said(one)), (text, one.err)
    assert sum("Traceback" in one.err for one in ended) == 1


DIFFERENT = {
    "op": (r"rank 0: boxing .*program.py:\d+;", r"rank 1: boxing float32\[\] .*program.py"),
    "shape": (r"rank 0: boxing float32\[6, 6\]", r"rank 1: boxing float32\[12, 6\]"),
    "dtype": (r"rank 0: boxing float32\[6, 6\]", r"rank 1: boxing float64\[6, 6\]"),
    "layout": (r"rank 0: .* S\(0\)@cpu\[0, 1.* -> B@cpu", r"rank 1: .* -> S\(1\)@cpu\[0, 1"),
    "order": (r"rank 0: boxing float32\[6, 6\]", r"rank 1: boxing float32\[12, 6\]"),
}
"""Deviation of one rank -> the two lines of the error that name it."""


@pytest.mark.parametrize(
    ("place", "num_ranks", "what"),
    [
        ("near", 2, "op"),
        ("near", 2, "order"),
        ("far", 3, "layout"),
        *(pytest.param("near", 2, w, marks=LATER) for w in ("shape", "dtype", "layout")),
        *(pytest.param("far", 3, w, marks=LATER) for w in DIFFERENT if w != "layout"),
    ],
)
def test_a_rank_that_calls_something_else(
    jobs: Jobs, place: str, num_ranks: int, what: str
) -> None:
    check_desync(alone(jobs, num_ranks, "differ", place, what), *DIFFERENT[what])


@pytest.mark.parametrize("place", NEAR)
def test_a_branch_on_one_rank_is_found_at_the_next_global_op(jobs: Jobs, place: str) -> None:
    lines = [re.escape(at("# on rank 0 alone")), re.escape(at("x.to_global(sbp=S1)"))]
    check_desync(
        alone(jobs, 2, "branch", place, "goes_on"), f"rank 0: .*{lines[0]}", f"rank 1: .*{lines[1]}"
    )


@pytest.mark.parametrize("place", FAR)
def test_a_branch_on_one_rank_is_found_when_the_other_ends(jobs: Jobs, place: str) -> None:
    ended = alone(jobs, 2, "branch", place, "ends")
    assert [one.code for one in ended] == [85, 0], [one.err for one in ended]
    assert "rank 1 exited 0 while peers run" in said(ended[0]) and ADVICE in said(ended[0])
    assert f"{PROGRAM.name}:" in said(ended[0])
    job = launch(jobs, 2, "branch", place, "ends")
    assert job.code == 85 and "reason=PEER_LOST" in job.line


@pytest.mark.parametrize(
    ("place", "is_new"),
    [("far", ("new",)), *(pytest.param("near", new, marks=LATER) for new in ((), ("new",)))],
)
def test_sets_of_ranks_in_different_order(jobs: Jobs, place: str, is_new: tuple[str, ...]) -> None:
    first = [re.escape(at("# first of rank 0")), re.escape(at("# first of the others"))]
    ended = alone(jobs, 3, "crossed_sets", place, *is_new)
    check_desync(ended, f"rank 0: .*{first[0]}", f"rank 1: .*{first[1]}", "waits for rank 0")


@pytest.mark.parametrize("place", NEAR)
def test_everyone_sends_before_it_receives(jobs: Jobs, place: str) -> None:
    line = re.escape(at("comm.send(flow.ones(3), (RANK"))
    texts = [f"rank {r}: .*{line}.*waits for rank {(r + 1) % 3}" for r in range(3)]
    check_desync(alone(jobs, 3, "ring_of_sends", place), *texts)


@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=LATER)])
def test_a_barrier_against_a_send(jobs: Jobs, num_ranks: int) -> None:
    line = re.escape(at("# before recv"))
    check_desync(alone(jobs, num_ranks, "barrier_and_send", "near"), f"rank 1: .*{line}")


def test_a_graph_against_an_eager_op(jobs: Jobs) -> None:
    lines = [re.escape(at("# a graph on rank 0")), re.escape(at("# meanwhile"))]
    ended = alone(jobs, 2, "compile_and_collective", "near")
    check_desync(ended, f"rank 0: .*{lines[0]}", f"rank 1: .*{lines[1]}")


@pytest.mark.parametrize("place", NEAR)
def test_a_rank_that_looks_at_a_loss_between_steps_alone(jobs: Jobs, place: str) -> None:
    lines = [re.escape(at("# on the way")), re.escape(at("# every step"))]
    ended = alone(jobs, 2, "look_between_steps", place)
    check_desync(ended, f"rank 0: .*{lines[0]}", f"rank 1: step 2 of graph Mean.*{lines[1]}")


# ---- nothing wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", FAR)
def test_ranks_that_are_only_slow_are_not_accused(jobs: Jobs, place: str) -> None:
    ended = launch(jobs, 3, "slow", place)
    assert ended.code == 0 and ended.out.count("done") == 3, ended.err


@pytest.mark.parametrize("place", FAR)
def test_a_rank_that_was_stopped_for_a_moment_goes_on(jobs: Jobs, place: str) -> None:
    ended = launch(jobs, 3, "paused", place)
    assert ended.code == 0 and ended.out.count("done") == 3, ended.err


@pytest.mark.parametrize("place", NEAR)
def test_after_a_caught_mistake_the_ranks_go_on(jobs: Jobs, place: str) -> None:
    ended = launch(jobs, 2, "caught", place)
    assert ended.code == 0 and ended.out.count("done") == 2, ended.err
