"""torchrun's flags and variables as the launcher's."""

from __future__ import annotations

import secrets

import pytest
from torch.distributed import run

from oneflow.core.errors import ConfigError
from oneflow.launcher.flag_table import FLAGS, WITHOUT_EFFECT
from oneflow.launcher.flags import parse
from oneflow.launcher.torchrun import elastic_env, with_node_rank
from oneflow.launcher.values import STDERR, STDOUT, Endpoint, Nodes, endpoint, streams

C10D = ["--rdzv-backend=c10d", "--nnodes=2"]
ELASTIC = ["--rdzv-backend=c10d", "--nnodes=2:4", "--rdzv-endpoint=node0:29400"]


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as error:
        parse([*argv, "x.py"], {})
    assert error.value.code == 2
    return capsys.readouterr().err


def test_an_endpoint_is_an_address_and_a_port() -> None:
    assert endpoint("node0:29400") == Endpoint("node0", 29400)
    assert endpoint("node0") == Endpoint("node0", None)
    assert endpoint("[::1]:29400") == Endpoint("::1", 29400)
    assert endpoint("::1") == endpoint("[::1]") == Endpoint("::1", None)
    assert str(endpoint("[::1]:80")) == "[::1]:80"
    for wrong in ("node0:", ":80", "node0:port", "node0:65536"):
        with pytest.raises(ValueError, match=r"port|host|65535|number"):
            endpoint(wrong)


def test_streams_are_chosen_for_all_ranks_or_for_each() -> None:
    assert [streams("2").has(rank, STDOUT) for rank in (0, 1)] == [False, False]
    assert [streams("3").has(rank, STDERR) for rank in (0, 1)] == [True, True]
    chosen = streams("0:1,1:3")
    assert [chosen.has(rank, STDOUT) for rank in (0, 1, 2)] == [True, True, False]
    assert [chosen.has(rank, STDERR) for rank in (0, 1, 2)] == [False, True, False]
    for wrong in ("4", "", "0:4", "a"):
        with pytest.raises(ValueError, match="give 0"):
            streams(wrong)


def test_the_usual_line_of_one_node() -> None:
    line = "--nnodes=1 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --role w"
    settings = parse([*line.split(), "--rdzv_id=job7", "-t", "3", "-r=0:1", "x.py", "-r", "9"], {})
    assert (settings.master_addr, settings.master_port) == ("localhost", 0)
    assert (settings.rdzv_id, settings.role, settings.notes) == ("job7", "w", ())
    assert settings.tee == streams("3") and settings.redirects == streams("0:1")
    assert settings.script_args == ("-r", "9")
    assert parse(["--rdzv-backend=c10d", "x.py"], {}).master_port == 0


def test_the_conf_of_a_rendezvous_gives_the_time_to_join() -> None:
    conf = "--rdzv-conf=timeout=9,join_timeout=7,read_timeout=5"
    settings = parse([conf, "x.py"], {})
    assert settings.rdzv_timeout == 7
    (note,) = settings.notes
    assert note.startswith("--rdzv-conf read_timeout has no effect: ")
    assert parse(["--rdzv-timeout=3", conf, "x.py"], {}).rdzv_timeout == 3


def test_flags_without_effect_say_so() -> None:
    argv = ["--start-method", "fork", "--local_addr=10.0.0.2", "--virtual-local-rank", "x.py"]
    notes = parse(argv, {"PET_LOGS_SPECS": "mine"}).notes
    told = ["--start-method", "--local-addr", "PET_LOGS_SPECS", "--virtual-local-rank"]
    assert [note.partition(" has no effect: ")[0] for note in notes] == told


def test_every_flag_of_torchrun_is_known() -> None:
    known = {word for flag in (*FLAGS, *WITHOUT_EFFECT) for word in flag.spellings}
    theirs = {word for word in run.get_args_parser()._option_string_actions if word[:2] == "--"}
    assert theirs - known == {"--help"}


def test_variables_of_torchrun_are_weaker_than_ours_and_than_flags() -> None:
    env = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "3", "PET_NODE_RANK": "1", "PET_LOG_DIR": ""}
    env |= {"PET_RDZV_ENDPOINT": "far:1", "ONEFLOW_LAUNCH_NPROC_PER_NODE": "4"}
    settings = parse(["--nnodes=4", "x.py"], env)
    assert (settings.num_nodes, settings.nproc_per_node, settings.node_rank) == (4, 4, 1)
    assert (settings.master_addr, settings.master_port, settings.logdir) == ("far", 1, "log")
    assert settings.origin["node_rank"] == "PET_NODE_RANK"
    assert settings.origin["master_addr"] == "PET_RDZV_ENDPOINT"
    near = parse(["--master_addr=near", "x.py"], env)
    assert (near.master_addr, near.master_port) == ("near", 1)
    with pytest.raises(ConfigError, match=r"PET_MAX_RESTARTS='x': 'x' is not a whole number"):
        parse(["x.py"], {"PET_MAX_RESTARTS": "x"})


def test_one_line_says_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--nnodes=2:2", "x.py"], {}).num_nodes == 2
    assert "3:2: MIN must not be more than MAX" in refused(["--nnodes", "3:2"], capsys)
    assert "--nnodes 1:2 needs --rdzv-backend c10d" in refused(["--nnodes", "1:2"], capsys)
    slow = refused([*ELASTIC, "--rdzv-conf=last_call_timeout=x"], capsys)
    assert "--rdzv-conf last_call_timeout: 'x' is not a number of seconds" in slow
    assert "'etcd' is not one of static, c10d" in refused(["--rdzv-backend=etcd"], capsys)
    assert "'x' is not key=value" in refused(["--rdzv-conf=x"], capsys)
    assert "timeout: 'x' is not a number" in refused(["--rdzv-conf=timeout=x"], capsys)
    assert "needs --rdzv-endpoint HOST:PORT" in refused(C10D, capsys)
    assert "--tee 5: there is no such local rank" in refused(["--tee=5:1"], capsys)
    assert "did you mean --nproc_per_node?" in refused(["--nproc_pernode=2"], capsys)
    assert "'thread' is not one of spawn" in refused(["--start-method=thread"], capsys)


def test_a_range_of_nodes_makes_an_elastic_job() -> None:
    found = parse([*ELASTIC, "x.py"], {})
    assert (found.is_elastic, found.nnodes, found.last_call_s) == (True, Nodes(2, 4), 30.0)
    quick = parse([*ELASTIC, "--rdzv-conf=last_call_timeout=1.5,join_timeout=9", "x.py"], {})
    assert (quick.last_call_s, quick.rdzv_timeout, quick.notes) == (1.5, 9.0, ())
    assert "nnodes" in quick.describe() and "2:4" in quick.describe()


def test_the_node_of_the_endpoint_is_the_first_of_two() -> None:
    port = secrets.choice(range(33_000, 60_000))
    here = parse([*C10D, f"--rdzv-endpoint=127.0.0.1:{port}", "x.py"], {})
    assert with_node_rank(here).node_rank == 0
    assert with_node_rank(here).node_rank == 1  # the port is claimed by now
    far = [*C10D, "--rdzv-endpoint=192.0.2.1:80", "x.py"]
    assert with_node_rank(parse(far, {})).node_rank == 1
    assert with_node_rank(parse(["--node-rank=0", *far], {})).node_rank == 0
    with pytest.raises(ConfigError, match="give --node-rank 1 to 2 on the others"):
        with_node_rank(parse([far[0], "--nnodes=3", *far[2:]], {}))


def test_ranks_get_the_variables_of_torchrun() -> None:
    argv = ["--nnodes=2", "--node_rank=1", "--nproc_per_node=3", "--rdzv-id=j", "x.py"]
    found = elastic_env(parse(argv, {}), rank=4, restarts=2)
    assert (found["GROUP_RANK"], found["LOCAL_WORLD_SIZE"]) == ("1", "3")
    assert (found["ROLE_RANK"], found["ROLE_WORLD_SIZE"]) == ("4", "6")
    assert (found["TORCHELASTIC_RESTART_COUNT"], found["TORCHELASTIC_RUN_ID"]) == ("2", "j")
