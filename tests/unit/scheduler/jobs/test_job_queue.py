"""The job that runs next, and its place."""

from __future__ import annotations

import random

from oneflow.scheduler.jobs.queue import choose, local_ranks, place
from oneflow.scheduler.jobs.records import DaemonRecord, DaemonState, JobRecord, JobSpec

NOBODY: frozenset[str] = frozenset()


def devices(layout: dict[str, int], kind: str = "cpu") -> list[DaemonRecord]:
    return [
        DaemonRecord(f"{node}/{kind}:{index}", node, kind, index, node, 1, 1)
        for node, count in layout.items()
        for index in range(count)
    ]


def job(
    name: str, count: int = 1, priority: int = 0, nodes: int = 0, kind: str = "cpu"
) -> JobRecord:
    spec = JobSpec(argv=("x",), devices=count, priority=priority, nodes=nodes, device_type=kind)
    return JobRecord(name, spec)


def placed(count: int, layout: dict[str, int], nodes: int = 0) -> list[str]:
    return [d.id for d in place(count, nodes, devices(layout))]


def test_smallest_node_that_fits_is_taken() -> None:
    assert placed(2, {"n0": 4, "n1": 2, "n2": 3}) == ["n1/cpu:0", "n1/cpu:1"]


def test_job_too_large_for_one_node_takes_few() -> None:
    assert placed(5, {"n0": 2, "n1": 4, "n2": 3}) == [
        "n1/cpu:0", "n1/cpu:1", "n1/cpu:2", "n1/cpu:3", "n2/cpu:0",
    ]  # fmt: skip


def test_number_of_nodes_is_honoured() -> None:
    assert placed(4, {"n0": 4, "n1": 2}, nodes=2) == [
        "n0/cpu:0", "n0/cpu:1", "n1/cpu:0", "n1/cpu:1",
    ]  # fmt: skip
    assert placed(4, {"n0": 8}, nodes=2) == []
    assert placed(4, {"n0": 3, "n1": 1}, nodes=2) == []


def test_ranks_of_a_node_count_from_zero() -> None:
    choice = choose([job("a", 5)], devices({"n0": 3, "n1": 3}), NOBODY)
    assignments = choice.starts["a"]
    assert [a.rank for a in assignments] == [0, 1, 2, 3, 4]
    assert local_ranks(assignments) == [0, 1, 2, 0, 1]


def test_no_device_is_given_twice() -> None:
    choice = choose([job("a", 2), job("b", 2), job("c", 1)], devices({"n0": 4}), NOBODY)
    given = [a.daemon for found in choice.starts.values() for a in found]
    assert len(given) == len(set(given)) == 4
    assert choice.pending == {
        "c": "needs 1 cpu device: 0 free, 2 busy with job a, 2 busy with job b"
    }


def test_small_job_does_not_overtake_one_that_will_fit() -> None:
    found = devices({"n0": 4})
    found[0] = DaemonRecord("n0/cpu:0", "n0", "cpu", 0, "n0", 1, 1, job="old")
    choice = choose([job("large", 4), job("small")], found, NOBODY)
    assert not choice.starts
    assert choice.pending["small"] == (
        "needs 1 cpu device: 3 free, 1 busy with job old; "
        "after job large, which is before it in the queue"
    )


def test_job_too_large_for_the_cluster_holds_up_nobody() -> None:
    choice = choose([job("huge", 9), job("small")], devices({"n0": 4}), NOBODY)
    assert list(choice.starts) == ["small"]


def test_a_job_too_large_for_the_cluster_is_told_its_size() -> None:
    choice = choose([job("big", 9)], devices({"a": 2, "b": 2}), NOBODY)
    said = "needs 9 cpu devices: the cluster has only 4; it waits until more join"
    assert choice.pending == {"big": said}


def test_other_device_types_are_not_held_up() -> None:
    found = devices({"n0": 1}) + devices({"n0": 1}, "cuda")
    choice = choose([job("a", 1), job("b", 1), job("c", 1, kind="cuda")], found, NOBODY)
    assert sorted(choice.starts) == ["a", "c"]
    assert choose([job("d", kind="cuda")], devices({"n0": 1}), NOBODY).pending == {
        "d": "needs 1 cuda device: the cluster has none"
    }


def test_devices_that_cannot_be_used_are_named() -> None:
    found = devices({"n0": 4})
    for index, state in enumerate((DaemonState.LOST, DaemonState.SUSPECT, DaemonState.DRAINING)):
        found[index] = DaemonRecord(f"n0/cpu:{index}", "n0", "cpu", index, "n0", 1, 1, state)
    choice = choose([job("a", 2, nodes=1)], found, frozenset({"n0/cpu:3"}))
    assert choice.pending["a"] == (
        "needs 2 cpu devices on 1 node: 0 free, 1 draining, 1 lost, 1 suspect, 1 unreachable"
    )


def test_random_queues_get_disjoint_devices_and_the_same_answer_twice() -> None:
    rng = random.Random(1)
    for _ in range(200):
        found = devices({f"n{i}": rng.randint(1, 4) for i in range(rng.randint(1, 4))})
        jobs = [job(f"j{i}", rng.randint(1, 6), nodes=rng.choice((0, 0, 1, 2))) for i in range(5)]
        choice = choose(jobs, found, NOBODY)
        given = [a.daemon for assigned in choice.starts.values() for a in assigned]
        assert len(given) == len(set(given))
        assert set(choice.starts) | set(choice.pending) == {record.id for record in jobs}
        rng.shuffle(found)
        assert choose(jobs, found, NOBODY) == choice
