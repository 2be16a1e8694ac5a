"""Impostors that take a scheduler's port are told nothing and obeyed in nothing: another user, a
process of the same user, one that replays recorded bytes, one that hands each byte on to the real
one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from oneflow.actors.control import ControlClient
from oneflow.cluster.connection import Connection, Patience
from oneflow.core.config import Config
from oneflow.core.errors import AuthError, ConfigError, PeerLostError, TransportError
from oneflow.core.loop import wait_for
from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import proof_pb2
from oneflow.scheduler.jobs.tokens import read_token_file
from oneflow.scheduler.ports import free_port
from oneflow.scheduler.server import SchedulerServer
from oneflow.services.pinned_channel import dial
from oneflow.services.proof import PROVE, Claim, ImpostorError
from tests.support.cluster import SchedulerProcess
from tests.support.local_cluster import LocalTest, submit
from tests.support.waiting import CALL_S, be_late, wait_until

PROGRAM = str(Path(__file__).with_name("impostor_program.py"))
STRANGER = 65534
NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
USERS = [
    pytest.param(os.getuid(), id="this user"),
    pytest.param(STRANGER, id="another user", marks=NEEDS_ROOT),
]


class Impostor:
    """A process of another user that has taken a port."""

    def __init__(self, port: int, uid: int, mode: str, more: str, folder: Path) -> None:
        self.mark = folder / "obeyed"
        argv = [sys.executable, PROGRAM, str(port), str(uid), mode, more]
        env = {**os.environ, "MARK": str(self.mark), "PYTHONDONTWRITEBYTECODE": "1"}
        self._said = folder / f"impostor-{port}"
        with open(self._said, "w") as said:
            self.process = subprocess.Popen(argv, env=env, stdout=said)
        wait_until(lambda: self._lines()[:1] == ["ready"])

    def _lines(self) -> list[str]:
        assert self.process.poll() is None
        return self._said.read_text().rpartition("\n")[0].splitlines()

    @property
    def heard(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines()[1:]]

    def check(self, *secrets: str) -> None:
        """Nothing was said to it but steps of proofs, and it was not obeyed."""
        assert {call["method"] for call in self.heard} <= {PROVE}
        said = self._said.read_text()
        for secret in secrets:
            assert secret not in said and secret.encode().hex() not in said
        assert not self.mark.exists()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def impostor(port: int, uid: int, folder: Path, mode: str = "invent", more: str = "") -> Any:
    found = Impostor(port, uid, mode, more, folder)
    try:
        yield found
    finally:
        found.end()


@pytest.fixture
def seen() -> Iterator[Path]:
    """A folder that other users may look into, unlike pytest's own."""
    found = Path(tempfile.mkdtemp(prefix="oneflow-seen-"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("uid", USERS)
def test_who_takes_the_port_of_a_dead_scheduler_is_told_nothing(seen: Path, uid: int) -> None:
    """Daemons that run a job, a client that waits and new ones; then the scheduler comes back."""
    local = LocalTest(seen)
    local.env["ONEFLOW_SCHEDULER_LISTEN"] = "127.0.0.1:0"
    open_to_all = seen / "all"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    up = ("cluster", "up", "--daemons", "2", "--allow-scripts")
    assert local.run(*up).returncode == 0
    try:
        secrets = [
            read_token_file(seen / "config" / "token"),
            read_token_file(seen / "state" / "local" / "daemon.token"),
        ]
        wait = f"while not os.path.exists({str(seen / 'enough')!r}): time.sleep(0.05)"
        work = local.script("works.py", f"print('at work', flush=True)\n{wait}")
        job_id = submit(local, work).stdout.strip()
        waits = local.start("job", "logs", "-f", job_id, stdout=subprocess.PIPE)
        assert waits.stdout is not None
        assert waits.stdout.readline().strip().endswith("at work")
        os.kill(local.record.scheduler.pid, signal.SIGKILL)
        port = port_of(local.record.address)
        wait_until(lambda: not _listens(port))
        with impostor(port, uid, open_to_all) as found:
            new = local.run("job", "list")
            assert new.returncode in (69, 78), new.stderr
            if uid == os.getuid():
                before = len(found.heard)
                wait_until(lambda: len(found.heard) > before)  # of daemons, none of which believe
            else:
                be_late(6.0)  # daemons try again every 3 s at most
            found.check(*secrets)
        waits.kill()
        waits.communicate()
        assert local.run(*up).returncode == 0
        (seen / "enough").touch()
        done = local.run("job", "wait", job_id)
        assert done.returncode == 0, done.stderr
    finally:
        local.run("cluster", "down")


@NEEDS_ROOT
def test_who_hands_each_byte_on_to_the_real_scheduler_is_refused(tmp_path: Path) -> None:
    """The proof is bound to the connection; a tunnel of this user may be in between."""
    scheduler = SchedulerProcess(tmp_path).start()
    try:
        target = port_of(scheduler.known["address"])
        for uid, is_refused in ((os.getuid(), False), (STRANGER, True)):
            port = free_port()
            connection = Connection(f"127.0.0.1:{port}", scheduler.token)
            with impostor(port, uid, tmp_path, "relay", str(target)), closing(connection):
                if not is_refused:
                    assert connection.call("Cluster", "Status", pb.Empty()).version
                    continue
                with pytest.raises(AuthError, match=f"user {STRANGER} stands between"):
                    connection.call("Cluster", "Status", pb.Empty())
        refused = [line for line in scheduler.audit if line["event"] == "auth_failure"]
        assert f"user {STRANGER} stands between" in refused[-1]["why"]
    finally:
        scheduler.kill()


def test_what_was_heard_of_one_proof_is_of_no_use_in_another(tmp_path: Path) -> None:
    """Neither the scheduler's steps to a client, nor a client's steps to the scheduler."""
    import grpc

    scheduler = SchedulerProcess(tmp_path).start()
    try:
        address, token = scheduler.known["address"], scheduler.token()
        line = dial("127.0.0.1", port_of(address), 5.0)
        with grpc.insecure_channel(line.target) as channel:
            asked, answered = _overheard(channel, Claim(token, line.near, line.far))
            again = _prove(channel, iter(asked))
            with pytest.raises(grpc.RpcError, match="the token was not proven"):
                list(again)
        port = free_port()
        steps = [{name.name: value.hex() for name, value in step.ListFields()} for step in answered]
        with impostor(port, os.getuid(), tmp_path, "replay", json.dumps(steps)) as found:
            connection = Connection(f"127.0.0.1:{port}", lambda: token, patience=Patience(0, 0))
            with pytest.raises(ImpostorError, match="does not know this token"):
                connection.call("Cluster", "Status", pb.Empty())
            assert len(found.heard) >= 2
            found.check(token)
    finally:
        scheduler.kill()


def _overheard(channel: Any, claim: Claim) -> tuple[list[Any], list[Any]]:
    """Words of a client and the scheduler in a proof."""
    asked: list[Any] = [claim.knock()]
    answered: list[Any] = []

    def steps() -> Iterator[Any]:
        yield asked[0]
        wait_until(lambda: answered)
        asked.append(claim.answer(answered[0]))
        yield asked[1]

    for step in _prove(channel, steps()):
        answered.append(step)
    claim.session(answered[1])
    return asked, answered


def _prove(channel: Any, steps: Iterator[Any]) -> Any:
    call = channel.stream_stream(
        PROVE,
        request_serializer=proof_pb2.ProofStep.SerializeToString,
        response_deserializer=proof_pb2.DoorStep.FromString,
    )
    return call(steps, timeout=CALL_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@NEEDS_ROOT
def test_a_local_cluster_cannot_be_reached_by_another_user(seen: Path) -> None:
    """Its socket lies in a folder of its own, and no port is open that could be taken."""
    local = LocalTest(seen)
    assert local.run("cluster", "up", "--daemons", "1").returncode == 0
    try:
        path = local.record.address.removeprefix("unix:")
        said = as_stranger(f"socket.socket(socket.AF_UNIX).connect({path!r})")
        assert "PermissionError" in said
        os.kill(local.record.scheduler.pid, signal.SIGKILL)
        said = as_stranger(f"os.unlink({path!r})")
        assert "PermissionError" in said
        said = as_stranger(f"socket.socket(socket.AF_UNIX).bind({path!r} + '2')")
        assert "PermissionError" in said
        assert local.run("cluster", "up").returncode == 0  # its folder is as it was
        assert local.record.address == f"unix:{path}"
    finally:
        local.run("cluster", "down")


@NEEDS_ROOT
def test_a_socket_of_another_user_is_not_believed(seen: Path) -> None:
    """Neither in a folder that others may look into, nor in one that was theirs."""
    folder = seen / "run"
    folder.mkdir()
    folder.chmod(0o777)
    path = folder / "sock"
    listen = f"""
server = socket.socket(socket.AF_UNIX)
server.bind({str(path)!r})
server.listen()
print('ready', flush=True)
server.settimeout(60)
print(server.accept()[0].recv(1000), flush=True)
"""
    argv = [sys.executable, "-I", "-c", STRANGER_SAYS + listen]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            connection = Connection(f"unix:{path}", lambda: "t" * 32, patience=Patience(0, 0))
            with pytest.raises(ConfigError, match="others may look into"):
                connection.call("Cluster", "Status", pb.Empty())
            folder.chmod(0o700)
            with pytest.raises(ConfigError, match=f"user {STRANGER} listens at unix:"):
                connection.call("Cluster", "Status", pb.Empty())
            assert process.stdout.readline() == "b''\n"  # it was connected to, and told nothing
        finally:
            process.kill()


STRANGER_SAYS = (
    f"import os, socket\nos.setgroups([])\nos.setgid({STRANGER})\nos.setuid({STRANGER})\n"
)


def as_stranger(text: str) -> str:
    """Has another user run a line of Python; returns its stderr."""
    argv = [sys.executable, "-I", "-c", STRANGER_SAYS + text]
    return subprocess.run(argv, capture_output=True, text=True).stderr


STRANGERS_RANK = """
import concurrent.futures.thread, os
import grpc
from oneflow.actors.control import ControlClient
from oneflow.core.config import Config
"localhost".encode("idna")  # as another user it imports nothing
os.setgroups([])
os.setgid({uid})
os.setuid({uid})
rank = ControlClient("127.0.0.1:{port}", 1, 2, Config(rank=1, world_size=2))
try:
    rank.join(20.0)
    print("joined", flush=True)
except Exception as error:
    print(type(error).__name__, error, flush=True)
"""


@NEEDS_ROOT
def test_a_strangers_rank_does_not_join_a_job_without_a_token() -> None:
    """The kernel names the user of a connection within a machine."""
    port = free_port()
    config = Config(rank=0, world_size=2)
    server = SchedulerServer(f"127.0.0.1:{port}", 2, lambda graph, config: b"", config)
    server.start()
    try:
        program = STRANGERS_RANK.format(uid=STRANGER, port=port)
        said = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
        )
        assert "joined" not in said.stdout, said
        assert "set the same ONEFLOW_JOB_TOKEN on every node" in said.stdout, said
    finally:
        server.stop()


@pytest.mark.parametrize("is_first", [True, False], ids=["before rank 0 came", "after it died"])
def test_a_rank_says_nothing_to_who_took_the_port_of_rank_0(tmp_path: Path, is_first: bool) -> None:
    token, port = "t" * 64, free_port()
    config = Config(rank=0, world_size=1, job_token=token, act_s=3.0)
    rank = ControlClient(f"127.0.0.1:{port}", 0, 1, config)
    server = SchedulerServer(f"127.0.0.1:{port}", 1, lambda graph, config: b"", config)
    if not is_first:
        server.start()
        rank.join(CALL_S)
        rank.put("key", b"value")
        wait_for(server._server.stop(0.0), CALL_S)  # without a word, as one that is killed
        wait_until(lambda: not _listens(port))
    with impostor(port, os.getuid(), tmp_path) as found:
        with pytest.raises((ImpostorError, PeerLostError, TransportError)):
            if is_first:
                rank.join(CALL_S)
            else:
                rank.put("key", b"value")
        assert found.heard
        found.check(token)
    rank.leave()
