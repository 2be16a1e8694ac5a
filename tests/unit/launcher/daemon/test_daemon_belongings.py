"""The environment that a daemon gives to the process of a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from oneflow.core import processors
from oneflow.launcher.daemon.rank_resources import RankResources
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.launcher.rank_env import THREAD_VARIABLES
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import AttemptKey


@pytest.mark.parametrize(
    ("prepare", "threads"),
    [
        (pb.Prepare(world_size=8, local_world_size=2), "4"),  # four hosts of two ranks
        (pb.Prepare(world_size=3, local_world_size=3), "2"),
        (pb.Prepare(world_size=9, local_world_size=9), "1"),
        (pb.Prepare(world_size=8, local_world_size=1), None),  # it has its host for itself
        (pb.Prepare(world_size=1, local_world_size=1), None),
        (pb.Prepare(world_size=4), "2"),  # of a scheduler that does not say
    ],
)
def test_the_ranks_of_a_host_share_its_processors(
    prepare: pb.Prepare, threads: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "usable_processors", lambda: 8)
    settings = DaemonSettings("cpu:0", "h:1", tmp_path, env={})
    env = RankResources(AttemptKey("j1", 1, 0), prepare, settings).env("127.0.0.1", 5000, {})
    assert {env.get(name) for name in THREAD_VARIABLES} == {threads}


def test_threads_that_the_user_names_stay(tmp_path: Path) -> None:
    spec = pb.JobSpec(env={"OMP_NUM_THREADS": "3"})
    prepare = pb.Prepare(spec=spec, world_size=4, local_world_size=4)
    settings = DaemonSettings("cpu:0", "h:1", tmp_path, env={})
    env = RankResources(AttemptKey("j1", 1, 0), prepare, settings).env("127.0.0.1", 5000, {})
    assert {env[name] for name in THREAD_VARIABLES} == {"3"}


def test_a_rank_has_as_many_threads_as_the_processors_it_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "usable_processors", lambda: 8)
    settings = DaemonSettings("cpu:0", "h:1", tmp_path, env={})
    for cpus, threads in ((2.5, "2"), (0.5, "1"), (64.0, "8")):
        prepare = pb.Prepare(spec=pb.JobSpec(cpus=cpus), world_size=2, local_world_size=2)
        env = RankResources(AttemptKey("j1", 1, 0), prepare, settings).env("127.0.0.1", 5000, {})
        assert {env[name] for name in THREAD_VARIABLES} == {threads}
