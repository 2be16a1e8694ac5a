"""The control plane between real processes: joining, agreeing, and losing a rank."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from oneflow.scheduler.ports import free_port
from tests.support.jobs import without_pauses
from tests.support.proving import proven
from tests.support.waiting import WAIT_S, be_late, wait_until

PROGRAM = str(Path(__file__).with_name("rank_program.py"))
UNHURRIED = {"ONEFLOW_HEARTBEAT_SECONDS": "5"}  # a rank that has no CPU for seconds is no remark


def rank_env(rank: int, world_size: int, port: int, **more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("ONEFLOW_")}
    world = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    quick = {"ONEFLOW_HEARTBEAT_SECONDS": "0.5", "ONEFLOW_RDZV_TIMEOUT_SECONDS": "120"}
    return env | world | address | quick | {"ONEFLOW_JOB_TOKEN": "t" * 64} | more


def heed_ctrl_c() -> None:
    """Shells start background jobs, and so tests run by one, with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Ranks:
    """Processes of one job without a launcher, so that nobody but the control plane ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, scene: str, world_size: int = 2, **more: str) -> Ranks:
        for rank in range(world_size):
            self.start_one(rank, scene, world_size, **more)
        return self

    def start_one(self, rank: int, scene: str, world_size: int = 2, **more: str) -> None:
        self.processes[rank] = subprocess.Popen(
            [sys.executable, PROGRAM, scene, str(self.folder)],
            env=rank_env(rank, world_size, self.port, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_ctrl_c,
        )

    def wait_here(self) -> None:
        """Until every rank has come to its pause."""
        names = [self.folder / f"{rank}.here" for rank in self.processes]
        wait_until(lambda: all(name.exists() for name in names))

    def go(self, *ranks: int) -> None:
        for rank in ranks or self.processes:
            (self.folder / f"{rank}.go").touch()

    def finish(self, rank: int) -> tuple[int, str, str]:
        """(exit code, stdout, stderr); 1 with the error's name in stderr for an uncaught error."""
        out, err = self.processes[rank].communicate(timeout=WAIT_S)
        return self.processes[rank].returncode, out, without_pauses(err)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    job = Ranks(tmp_path)
    yield job
    for process in job.processes.values():
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate(timeout=WAIT_S)


def test_keys_barriers_and_a_plan_reach_all(ranks: Ranks) -> None:
    ranks.start("work", 3, **UNHURRIED)
    for rank in range(3):
        code, out, err = ranks.finish(rank)
        assert (code, out, err) == (0, "0,1,2 6000001\n", "")


def test_forked_helpers_work_and_are_quiet(ranks: Ranks) -> None:
    ranks.start("fork", **UNHURRIED)
    for rank in (0, 1):
        assert ranks.finish(rank) == (0, f"[{rank}]\n", "")


def test_first_differing_node_is_shown_to_all(ranks: Ranks) -> None:
    ranks.start("differ", 3)
    for rank in range(3):
        code, _, err = ranks.finish(rank)
        assert code == 1 and "DesyncError: compile of 'Net': the ranks differ at node 1" in err
        assert "ranks 0, 2: %2 = relu(%1)  # train.py:9" in err
        assert "rank 1: %2 = gelu(%1)  # train.py:9" in err


def test_an_error_of_the_compiler_reaches_all(ranks: Ranks) -> None:
    ranks.start("compile error")
    for rank in range(2):
        assert "ValueError: node 3: no such op" in ranks.finish(rank)[2]


def test_missing_rank_is_named_at_the_deadline(ranks: Ranks) -> None:
    for rank in (0, 2):
        ranks.start_one(rank, "join at once", 3, ONEFLOW_RDZV_TIMEOUT_SECONDS="6")
    ranks.wait_here()  # they need seconds to start
    ranks.go()
    for rank in (0, 2):
        code, _, err = ranks.finish(rank)
        assert code == 1 and "RendezvousError: 1 of 3 ranks did not join" in err
        assert ": rank 1; were they started" in err


def test_a_rank_without_rank_0_says_so(ranks: Ranks) -> None:
    ranks.start_one(1, "join only", 2, ONEFLOW_RDZV_TIMEOUT_SECONDS="1")
    err = ranks.finish(1)[2]
    assert f"could not reach rank 0's scheduler at 127.0.0.1:{ranks.port} within 1 s" in err


def test_duplicate_rank_wrong_world_and_wrong_token_are_refused(ranks: Ranks) -> None:
    ranks.start_one(0, "join only", 2, ONEFLOW_RDZV_TIMEOUT_SECONDS="120")
    ranks.start_one(1, "join only", 3)
    assert "has WORLD_SIZE=3, but rank 0 has 2" in ranks.finish(1)[2]
    ranks.start_one(1, "join only", 2, ONEFLOW_JOB_TOKEN="other")
    assert "ConfigError" in (err := ranks.finish(1)[2]) and "another job listens there" in err
    ranks.start_one(1, "join only", 2, ONEFLOW_ATTEMPT="2")
    assert "attempt 2 of the job" in ranks.finish(1)[2]
    ranks.start_one(1, "join only", 2)
    assert ranks.finish(1)[0] == 0 == ranks.finish(0)[0]


def test_second_scheduler_on_the_port_names_the_first(ranks: Ranks) -> None:
    ranks.start("killed")
    ranks.wait_here()
    holder = ranks.processes[0].pid
    other = Ranks(ranks.folder)
    other.port = ranks.port
    other.start_one(0, "join only", 1)
    err = other.finish(0)[2]
    assert f"ConfigError: port {ranks.port} on 127.0.0.1 is in use by pid {holder}" in err


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_others_and_is_named(ranks: Ranks, victim: int) -> None:
    ranks.start("killed0" if victim == 0 else "killed", 3)
    ranks.wait_here()
    ranks.go()
    pid = ranks.processes[victim].pid
    assert ranks.finish(victim)[0] == -signal.SIGKILL
    for rank in {0, 1, 2} - {victim}:
        code, _, err = ranks.finish(rank)
        assert code == 1 and "PeerLostError: rank" in err
        assert f"rank {victim} (host" in err and f"pid {pid})" in err


def test_a_reported_failure_ends_the_others_with_its_cause(ranks: Ranks) -> None:
    ranks.start("reported")
    _, _, err = ranks.finish(0)
    assert "failed first: ValueError: boom (train.py:3)" in err


def test_an_early_exit_with_0_is_not_success_for_those_who_need_the_rank(ranks: Ranks) -> None:
    ranks.start("early exit", 3)
    assert ranks.finish(1)[0] == 0
    for rank in (0, 2):
        assert "PeerLostError: rank 1 exited 0 while peers run" in ranks.finish(rank)[2]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_short_freeze_changes_nothing(ranks: Ranks, victim: int) -> None:
    ranks.start("frozen", ONEFLOW_SUSPECT_SECONDS="2.4", ONEFLOW_PEER_TIMEOUT_SECONDS="60")
    ranks.wait_here()
    ranks.processes[victim].send_signal(signal.SIGSTOP)
    be_late(2.6)  # suspect, and far from lost
    ranks.processes[victim].send_signal(signal.SIGCONT)
    ranks.go()
    assert [ranks.finish(rank)[0] for rank in (0, 1)] == [0, 0]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_long_freeze_is_a_lost_rank_for_both_sides(ranks: Ranks, victim: int) -> None:
    ranks.start("frozen")
    ranks.wait_here()
    ranks.processes[victim].send_signal(signal.SIGSTOP)
    ranks.go()
    err = ranks.finish(1 - victim)[2]
    assert "PeerLostError" in err and f"rank {victim} (host" in err
    ranks.processes[victim].send_signal(signal.SIGCONT)
    code, _, err = ranks.finish(victim)
    assert code == 1 and "PeerLostError" in err  # it is not let in again


def test_ctrl_c_ends_a_waiting_call_at_once(ranks: Ranks) -> None:
    ranks.start("ctrl-c")
    ranks.wait_here()
    ranks.go()
    be_late(0.2)
    for rank in (1, 0):
        ranks.processes[rank].send_signal(signal.SIGINT)
        code, _, err = ranks.finish(rank)
        assert code == -signal.SIGINT and "KeyboardInterrupt" in err


def listening_addresses(pid: int) -> set[str]:
    """Local ends, as /proc/net/tcp writes them, of the sockets that a process listens on."""
    held, found = set(), set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has just been closed
            held.add(os.readlink(path))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
                found.add(fields[1])
    return found


def test_only_the_loopback_port_is_open(ranks: Ranks) -> None:
    ranks.start("frozen")
    ranks.wait_here()
    (address,) = listening_addresses(ranks.processes[0].pid)
    assert address.endswith(f"0100007F:{ranks.port:04X}")  # 127.0.0.1, also as an IPv6 address
    assert listening_addresses(ranks.processes[1].pid) == set()
    ranks.go()
    assert [ranks.finish(rank)[0] for rank in (0, 1)] == [0, 0]


def test_rubbish_on_the_port_disturbs_nobody(ranks: Ranks) -> None:
    ranks.start("frozen")
    ranks.wait_here()
    random_ = random.Random(0)
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", ranks.port), timeout=60) as connection:
            connection.sendall(random_.randbytes(random_.randint(1, 5000)))
    refused = send_rubbish(f"127.0.0.1:{ranks.port}", random_)
    assert "OK" not in refused
    ranks.go()
    assert [ranks.finish(rank)[0] for rank in (0, 1)] == [0, 0]


def send_rubbish(address: str, random_: random.Random) -> set[str]:
    """Status codes of calls of every method with random and oversized bytes, from one who has
    proven the token.
    """
    import grpc

    codes = set()
    with proven(address, "t" * 64) as (channel, metadata):
        for method in ("Join", "Put", "Get", "Barrier", "ReportFailure", "Leave"):
            call = channel.unary_unary(f"/oneflow.Scheduler/{method}")
            for nbytes in (50, 5000, 5 << 20):
                data = b"\xff" + random_.randbytes(nbytes)
                with pytest.raises(grpc.RpcError) as error:
                    call(data, timeout=60, metadata=metadata)
                codes.add(error.value.code().name)
    return codes
