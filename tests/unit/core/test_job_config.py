"""JobConfig and Cluster: checked when made, strict when read."""

from __future__ import annotations

import pytest

from oneflow.core.errors import ConfigError
from oneflow.core.job_config import AutoParallel, Cluster, JobConfig


def test_bytes_give_the_same_back():
    config = JobConfig("g", num_pieces=4, order_mode="SpeedFirst", auto_parallel=AutoParallel())
    cluster = Cluster(2, ("a", "b"))
    assert JobConfig.from_bytes(config.to_bytes()) == config
    assert Cluster.from_bytes(cluster.to_bytes()) == cluster


def test_a_cluster_is_one_host_unless_said_otherwise():
    assert Cluster(3).hosts == ("localhost",) * 3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1]",
        b'{"name": 5}',
        b'{"name": "g", "num_pieces": "2"}',
        b'{"name": "g", "colour": 1}',
        b"{}",
    ],
)
def test_bytes_of_another_kind_are_refused(data):
    with pytest.raises(ConfigError):
        JobConfig.from_bytes(data)


@pytest.mark.parametrize("fields", [{"num_pieces": 0}, {"order_mode": "x"}])
def test_values_that_make_no_sense_are_refused(fields):
    with pytest.raises(ConfigError):
        JobConfig("g", **fields)
    with pytest.raises(ConfigError):
        Cluster(2, ("a",))
