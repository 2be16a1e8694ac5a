"""The environment is read once and checked: mistakes name the variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from oneflow.core.config import Config, ConfigWarning, join_address, split_address
from oneflow.core.errors import ConfigError

WORLD = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "RANK": "2"}


def test_nothing_set_is_a_world_of_one() -> None:
    config = Config.from_env({})
    assert (config.rank, config.world_size, config.launched) == (0, 1, False)
    assert (config.heartbeat_s, config.suspect_s, config.act_s) == (1.0, 3.0, 10.0)
    assert config.job_token is None and config.metrics_addr is None


def test_launched_world() -> None:
    config = Config.from_env(WORLD | {"LOCAL_RANK": "1", "ONEFLOW_JOB_TOKEN": "secret"})
    assert (config.rank, config.world_size, config.local_rank) == (2, 4, 1)
    assert config.launched and config.master_address == "127.0.0.1:29500"
    assert config.job_token == "secret"


def test_caches_are_folders_or_off() -> None:
    named = Config.from_env({"ONEFLOW_PLAN_CACHE": "/var/plans", "ONEFLOW_KERNEL_CACHE": "Off"})
    assert (named.plan_cache, named.kernel_cache) == (Path("/var/plans"), None)
    usual = Config.from_env({"XDG_CACHE_HOME": "/c"})
    assert (usual.plan_cache, usual.kernel_cache) == (
        Path("/c/oneflow/plans"),
        Path("/c/oneflow/kernels"),
    )


def test_half_a_world_is_a_world_of_one_with_a_warning() -> None:
    with pytest.warns(ConfigWarning, match="RANK set but not MASTER_ADDR"):
        config = Config.from_env({"RANK": "2"})
    assert (config.rank, config.world_size) == (0, 1)


def test_a_proxy_is_warned_of_in_a_launched_world_only() -> None:
    proxy = {"http_proxy": "http://proxy:3128"}
    Config.from_env(proxy)
    with pytest.warns(ConfigWarning, match="http_proxy"):
        Config.from_env(WORLD | proxy)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("WORLD_SIZE", "four"),
        ("RANK", "4"),
        ("RANK", "-1"),
        ("MASTER_PORT", "65536"),
        ("ONEFLOW_TIMEOUT_SECONDS", "0"),
        ("ONEFLOW_TIMEOUT_SECONDS", "inf"),
        ("ONEFLOW_HEARTBEAT_SECONDS", "nan"),
        ("ONEFLOW_DEBUG", "perhaps"),
        ("ONEFLOW_PEER_TIMEOUT_SECONDS", "1.5"),
        ("ONEFLOW_METRICS_ADDR", "bogus"),
        ("ONEFLOW_METRICS_ADDR", "localhost:70000"),
        ("ONEFLOW_TRACE", ":5"),
        ("ONEFLOW_TRACE", "folder:0"),
    ],
)
def test_a_bad_value_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        Config.from_env(WORLD | {variable: value})


@pytest.mark.parametrize(
    ("text", "folder", "steps"),
    [("a", "a", 100), ("a/b:7", "a/b", 7), ("a:b", "a:b", 100), ("a:b:7", "a:b", 7)],
)
def test_where_a_trace_goes(text: str, folder: str, steps: int) -> None:
    config = Config.from_env({"ONEFLOW_TRACE": text})
    assert (str(config.trace_dir), config.trace_steps) == (folder, steps)
    assert Config.from_env({}).trace_dir is None


def test_shorter_heartbeats_shorten_what_depends_on_them() -> None:
    config = Config.from_env({"ONEFLOW_HEARTBEAT_SECONDS": "0.2"})
    assert (config.suspect_s, config.act_s) == pytest.approx((0.6, 2.0))


@pytest.mark.parametrize("timeout", ["0.5", "5", "60"])
def test_a_short_timeout_alone_is_enough(timeout: str) -> None:
    config = Config.from_env({"ONEFLOW_TIMEOUT_SECONDS": timeout})
    assert config.timeout_s == float(timeout)
    assert config.heartbeat_s < config.suspect_s < config.act_s < config.timeout_s


def test_addresses() -> None:
    assert split_address("10.0.0.1:80") == ("10.0.0.1", 80)
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address(join_address("::1", 7)) == ("::1", 7)
    for bad in ("host", "host:", "host:x", "host:70000"):
        with pytest.raises(ConfigError):
            split_address(bad)


@pytest.mark.parametrize(
    ("text", "wanted"), [(None, 0), ("", 0), ("3", 3), (" 4,2", 4), ("many", 0), ("-1", 0)]
)
def test_threads_are_those_of_openmp(text: str | None, wanted: int) -> None:
    env = {} if text is None else {"OMP_NUM_THREADS": text}
    assert Config.from_env(env).kernel_threads == wanted
