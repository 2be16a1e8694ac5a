"""Jobs that name nodes or labels, and how they wait."""

from __future__ import annotations

import pytest

from oneflow.core.errors import JobSpecError, ProtocolError
from oneflow.scheduler.jobs.limits import check_spec
from oneflow.scheduler.jobs.queue import choose
from oneflow.scheduler.jobs.records import DaemonRecord, JobRecord, JobSpec
from oneflow.scheduler.jobs.specs import spec_from_proto, spec_to_proto

from .table_rig import Rig

NOBODY: frozenset[str] = frozenset()


def devices(**labels: tuple[str, ...]) -> list[DaemonRecord]:
    """Two devices of each node."""
    return [
        DaemonRecord(f"{node}/cpu:{i}", node, "cpu", i, node, 1, 1, labels=found)
        for node, found in labels.items()
        for i in range(2)
    ]


def job(name: str, count: int = 1, **where: tuple[str, ...]) -> JobRecord:
    return JobRecord(name, JobSpec(argv=("x",), devices=count, **where))  # type: ignore[arg-type]


H200, FAST = ("gpu=h200",), ("disk=nvme", "gpu=h200")


@pytest.mark.parametrize(
    ("where", "node"),
    [
        ({}, "a"),
        ({"only_nodes": ("b",)}, "b"),
        ({"only_nodes": ("x", "c")}, "c"),
        ({"exclude_nodes": ("a", "b")}, "c"),
        ({"require_labels": H200}, "b"),
        ({"require_labels": FAST}, "c"),
        ({"require_labels": H200, "exclude_nodes": ("b",)}, "c"),
    ],
)
def test_a_job_gets_devices_of_nodes_that_it_may_use(
    where: dict[str, tuple[str, ...]], node: str
) -> None:
    choice = choose([job("j", 2, **where)], devices(a=(), b=H200, c=FAST), NOBODY)
    assert {a.node for a in choice.starts["j"]} == {node}


def test_one_without_such_a_node_waits_names_it_and_holds_up_nobody() -> None:
    jobs = [job("j", require_labels=("gpu=b300",)), job("k", 3, require_labels=H200), job("l")]
    choice = choose(jobs, devices(a=(), b=H200), NOBODY)
    assert list(choice.starts) == ["l"]
    assert choice.pending["j"] == "needs 1 cpu device with gpu=b300: the cluster has none"
    assert choice.pending["k"] == (
        "needs 3 cpu devices with gpu=h200: the cluster has only 2; it waits until more join"
    )


def test_one_that_is_next_on_a_node_keeps_it_free_and_no_other() -> None:
    rig = Rig(4, nodes=2)  # n0 and n1 with two devices each
    rig.run("busy", only_nodes=("n1",))
    rig.submit("next", devices=2, only_nodes=("n1",))
    rig.submit("there", only_nodes=("n1",))
    rig.submit("elsewhere", devices=2)
    assert str(rig.job("elsewhere").state) == "STARTING"
    assert {a.node for a in rig.job("elsewhere").assignments} == {"n0"}
    need = "on n1: 1 free, 1 busy with job busy"
    assert rig.job("next").pending == f"needs 2 cpu devices {need}"
    said = f"needs 1 cpu device {need}; after job next, which is before it in the queue"
    assert rig.job("there").pending == said
    rig.exit(0, 0, job_id="busy")
    assert str(rig.job("next").state) == "STARTING"


def test_an_elastic_job_grows_on_nodes_that_it_may_use_only() -> None:
    rig = Rig(1)
    rig.run(devices=1, max_devices=2, exclude_nodes=("n7",))
    rig.join("n7/cpu:0")
    rig.pass_time(40)
    assert len(rig.job().assignments) == 1 and rig.job().attempt == 1
    rig.join("n8/cpu:0")
    rig.pass_time(40)
    assert rig.said("stop")


def test_labels_come_with_the_daemon_and_survive_the_wire() -> None:
    rig = Rig(0)
    rig.submit(require_labels=H200)
    rig.join("n0/cpu:0", labels=["gpu=h200", "disk=nvme"])
    assert rig.table.daemons["n0/cpu:0"].labels == FAST
    assert str(rig.job().state) == "STARTING"
    spec = JobSpec(argv=("x",), only_nodes=("a",), exclude_nodes=("b",), require_labels=H200)
    assert spec_from_proto(spec_to_proto(spec)) == spec
    with pytest.raises(ProtocolError, match="no labels"):
        rig.join("n1/cpu:0", labels=["gpu"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"only_nodes": ("a b",)},
        {"exclude_nodes": ("",)},
        {"require_labels": ("gpu",)},
        {"require_labels": ("gpu=h200",) * 65},
    ],
)
def test_what_names_no_node_is_refused(wrong: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(JobSpecError, match=next(iter(wrong))):
        check_spec(JobSpec(argv=("x",), **wrong))  # type: ignore[arg-type]
