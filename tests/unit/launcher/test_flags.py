"""Flags: both spellings, variables, defaults, and refusals."""

from __future__ import annotations

import pytest

from oneflow.core.errors import ConfigError
from oneflow.launcher.flag_table import FLAGS, PREFIX_TEMPLATE
from oneflow.launcher.flags import build_parser, parse
from oneflow.launcher.values import count_gpus


def test_defaults_are_those_of_upstream() -> None:
    settings = parse(["train.py"], {})
    assert (settings.num_nodes, settings.node_rank, settings.nproc_per_node) == (1, 0, 1)
    assert (settings.master_addr, settings.master_port) == ("127.0.0.1", 29500)
    assert (settings.logdir, settings.redirect_stdout_and_stderr) == ("log", False)
    assert settings.log_line_prefix_template == ""  # one process: its output is left alone


def test_every_flag_has_both_spellings() -> None:
    known = set(build_parser()._option_string_actions)
    for flag in FLAGS:
        assert {f"--{flag.name}", f"--{flag.name.replace('_', '-')}"} <= known


def test_what_follows_the_script_is_the_script_s() -> None:
    settings = parse(["--nproc-per-node", "2", "train.py", "--nnodes", "9", "-m", "x"], {})
    assert settings.script_args == ("--nnodes", "9", "-m", "x")
    assert settings.num_nodes == 1 and not settings.module
    assert settings.log_line_prefix_template == PREFIX_TEMPLATE


def test_flag_beats_variable_beats_default() -> None:
    env = {"ONEFLOW_LAUNCH_NNODES": "4", "ONEFLOW_LAUNCH_NODE_RANK": "1"}
    settings = parse(["--node_rank", "3", "train.py"], env)
    assert (settings.num_nodes, settings.node_rank, settings.max_restarts) == (4, 3, 0)
    assert settings.origin["nnodes"] == "ONEFLOW_LAUNCH_NNODES"
    assert settings.origin["node_rank"] == "flag"
    assert settings.origin["max_restarts"] == "default"
    assert settings.world_size == 4


@pytest.mark.parametrize(
    "argv",
    [
        ["--nnodes", "2", "--node_rank", "2", "x.py"],
        ["--nnodes", "2", "--standalone", "x.py"],
        ["--nproc_per_node", "0", "x.py"],
        ["--grace-period", "-1", "x.py"],
        ["--rdzv-timeout", "nan", "x.py"],
        ["--master_port", "65536", "x.py"],
        ["-m", "--no_python", "x"],
        ["--nproc", "2", "x.py"],  # no abbreviations: they break when a flag is added
        [],
    ],
)
def test_nonsense_is_a_usage_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        parse(argv, {})
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert "error: " in said and said.endswith("(--help lists the flags)\n")
    assert said.count("\n") == 1


def test_an_ipv6_address_may_have_brackets() -> None:
    assert parse(["--master-addr", "[::1]", "x.py"], {}).master_addr == "::1"
    assert parse(["--master-addr", "::1", "x.py"], {}).master_addr == "::1"


def test_a_wrong_number_of_processes_says_what_can_be_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse(["--nproc_per_node", "two", "x.py"], {})
    assert "--nproc_per_node" in (said := capsys.readouterr().err)
    assert "'two' is not a number, auto, cpu or gpu" in said


def test_output_of_a_rank_that_is_not_started_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--nproc_per_node", "2", "--local_ranks_filter"]
    assert parse([*argv, "0,1", "x.py"], {}).local_ranks_filter == (0, 1)
    with pytest.raises(SystemExit):
        parse([*argv, "0,5", "x.py"], {})
    assert "--local_ranks_filter 5: there is no such local rank" in capsys.readouterr().err


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="ONEFLOW_LAUNCH_MAX_RESTARTS='x'"):
        parse(["train.py"], {"ONEFLOW_LAUNCH_MAX_RESTARTS": "x"})


def test_cpu_and_auto_give_at_least_one_process() -> None:
    assert parse(["--nproc_per_node", "cpu", "x.py"], {}).nproc_per_node >= 1
    assert parse(["--nproc_per_node", "auto", "x.py"], {}).nproc_per_node >= 1


def test_visible_devices_limit_the_gpus() -> None:
    assert count_gpus({"CUDA_VISIBLE_DEVICES": "0,3"}) == 2
    assert count_gpus({"CUDA_VISIBLE_DEVICES": ""}) == 0
    assert count_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == 0
