"""A job that fails: its exit code, its last line, what each rank says, and that nothing is left.

Every run is checked for what must hold after any failure: one cause line, the last; one traceback
at most; no process, no shared memory and no temporary folder of the job left.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from oneflow.scheduler.ports import free_port

PROGRAM = Path(__file__).with_name("failing_program.py")
DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
LAUNCH = ["-m", "oneflow.distributed.launch", "--nproc_per_node", "2", "--grace-period", "1"]
WAIT_S = 90


@dataclass
class Ended:
    """How a run ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def line(self) -> str:
        """The cause line, which must be the only one and the last."""
        found = [text for text in self.err.splitlines() if text.startswith("oneflow: job=")]
        assert len(found) == 1 and self.err.splitlines()[-1] == found[0], self.err
        return found[0]

    def by_rank(self, rank: int) -> str:
        """What a rank wrote to stderr."""
        pattern = re.compile(rf"^[^:\s]+:{rank}: ?(.*)$")
        found = [pattern.match(text) for text in self.err.splitlines()]
        return "\n".join(match.group(1) for match in found if match)


class Jobs:
    """Starts processes, and knows what they may leave behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.mark = uuid.uuid4().hex
        self.shm = set(os.listdir("/dev/shm"))
        self.running: list[subprocess.Popen[str]] = []

    def env(self, **more: str) -> dict[str, str]:
        ours = ("ONEFLOW_", "MASTER_", "WORLD_SIZE", "RANK", "LOCAL_RANK")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        quick = {"ONEFLOW_HEARTBEAT_SECONDS": "0.2", "ONEFLOW_TIMEOUT_SECONDS": "20"}
        marked = {"FAILURE_TEST": self.mark, "TMPDIR": str(self.temporary)}
        return kept | {"OMP_NUM_THREADS": "1"} | quick | marked | more

    def start(self, *command: str, **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            env=self.env(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.running.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> Ended:
        started = time.monotonic()
        out, err = process.communicate(timeout=WAIT_S)
        return Ended(process.returncode, out, err, time.monotonic() - started)

    def launch(self, *script: str, flags: tuple[str, ...] = (), **more: str) -> Ended:
        """A job of two ranks, started and waited for."""
        process = self.start(*LAUNCH, "--standalone", *flags, *script, **more)
        return self.finish(process)

    def scene(self, scene: str, *args: str, **more: str) -> Ended:
        return self.launch(str(PROGRAM), scene, str(self.folder), *args, **more)

    def by_hand(self, *script: str, **more: str) -> list[subprocess.Popen[str]]:
        """Two ranks as two terminals would start them."""
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        world["ONEFLOW_RDZV_TIMEOUT_SECONDS"] = "20"
        return [
            self.start(*script, **world, RANK=str(r), LOCAL_RANK=str(r), **more) for r in (0, 1)
        ]

    def wait_here(self) -> None:
        """Until both ranks have done a few steps."""
        wait_until(self._are_here)

    def _are_here(self) -> bool:
        if all((self.folder / f"{rank}.here").exists() for rank in (0, 1)):
            return True
        if any(process.poll() is not None for process in self.running):
            pytest.fail("\n".join(p.communicate(timeout=WAIT_S)[1] for p in self.running))
        return False

    def pids(self, rank: str | None = None) -> list[int]:
        """Living processes of the jobs, or of one rank of them."""
        wanted = {f"FAILURE_TEST={self.mark}"} | ({f"RANK={rank}"} if rank else set())
        return [int(p.name) for p in Path("/proc").glob("[0-9]*") if wanted <= environment(p)]

    def check_nothing_is_left(self) -> None:
        assert self.pids() == []
        assert list(self.temporary.iterdir()) == []
        assert {n for n in set(os.listdir("/dev/shm")) - self.shm if "oneflow" in n} == set()


def environment(process: Path) -> set[str]:
    """Of a process; empty for one that is gone, a zombie or somebody else's."""
    try:
        return set((process / "environ").read_bytes().decode(errors="replace").split("\0"))
    except OSError:
        return set()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    started = Jobs(tmp_path)
    yield started
    for process in started.running:
        if process.poll() is None:
            process.kill()
            process.communicate()
    wait_until(lambda: not started.pids())
    started.check_nothing_is_left()


# ---- one rank fails ------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_failing_rank_shows_its_traceback_and_the_other_a_line(
    jobs: Jobs, rank: int
) -> None:
    ended = jobs.scene("raise_later", str(rank))
    assert ended.code == 1
    assert f"reason=USER_ERROR rank={rank} " in ended.line
    assert re.search(r'cause="ValueError: boom \(failing_program.py:\d+\)"$', ended.line)
    assert ended.by_rank(rank).startswith("Traceback") and "in raise_later" in ended.by_rank(rank)
    other = ended.by_rank(1 - rank)
    if other:  # it may have been ended before it noticed
        assert len(other.splitlines()) == 1
        assert f"PeerLostError: rank {rank} on host" in other and "ValueError: boom" in other


def test_a_rank_that_fails_before_it_joins_ends_the_others(jobs: Jobs) -> None:
    ended = jobs.scene("raise_first")
    assert ended.code == 1 and "reason=USER_ERROR rank=1 " in ended.line
    assert ended.err.count("Traceback") == 1


def test_an_exit_code_is_the_jobs(jobs: Jobs) -> None:
    ended = jobs.scene("exit_", "7", "1")
    assert ended.code == 7 and "reason=USER_ERROR rank=1 " in ended.line
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("rank", [0, 1])
def test_leaving_with_0_while_a_peer_trains_is_a_lost_peer(jobs: Jobs, rank: int) -> None:
    ended = jobs.scene("exit_", "0", str(rank))
    assert ended.code == 85
    assert "reason=PEER_LOST" in ended.line
    assert f"rank {rank} exited 0 while peers run" in ended.line
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("rank", [0, 1])
def test_leaving_with_0_before_joining_is_a_lost_peer(jobs: Jobs, rank: int) -> None:
    ended = jobs.scene("exit_first", str(rank))
    assert ended.code == 85 and "reason=PEER_LOST" in ended.line
    assert f"rank {rank} exited 0 before it joined: rank {1 - rank} needs it" in ended.line
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_the_cause(jobs: Jobs, rank: int) -> None:
    ended = jobs.scene("kill", str(rank))
    assert ended.code == 137
    assert f"reason=SIGNAL rank={rank} " in ended.line and "SIGKILL" in ended.line
    assert "Traceback" not in ended.err


def test_a_segfault_shows_the_line_that_crashed(jobs: Jobs) -> None:
    ended = jobs.scene("segfault")
    assert ended.code == 139 and "SIGSEGV" in ended.line
    assert "in segfault" in ended.by_rank(1)
    assert "Thread 0x" not in ended.by_rank(1).replace("Current thread 0x", "")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_is_lost_after_the_configured_time(jobs: Jobs, rank: int) -> None:
    process = jobs.start(*LAUNCH, "--standalone", str(PROGRAM), "forever", str(jobs.folder))
    jobs.wait_here()
    (pid,) = jobs.pids(str(rank))
    os.kill(pid, signal.SIGSTOP)  # lost after ten heartbeats: 2 s
    ended = jobs.finish(process)
    assert ended.code == 85
    assert f"rank {rank} (host" in ended.line and "is gone" in ended.line
    assert f"pid {pid}" in ended.line
    assert "Traceback" not in ended.err
    assert ended.seconds < 20


def test_an_error_in_a_kernel_names_the_line_of_the_module(jobs: Jobs) -> None:
    ended = jobs.scene("kernel_error")
    assert ended.code == 1
    assert "IndexError" in ended.line and "in module lookup" in ended.line
    number = line_of("return self.table(ids)")
    assert f"failing_program.py:{number}, in module lookup" in ended.line


def line_of(text: str) -> int:
    lines = PROGRAM.read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


# ---- ranks that do different things --------------------------------------------------------------


def test_different_graphs_show_each_ranks_op_and_line(jobs: Jobs) -> None:
    ended = jobs.scene("different_graphs")
    assert ended.code == 81 and "reason=DESYNC" in ended.line
    for text in (
        f"rank 0: %4: float32[8, 4] ? = relu(%3) @cpu[0, 1] ({PROGRAM}:{line_of('flow.relu(h)')})",
        f"rank 1: %4: float32[8, 4] ? = tanh(%3) @cpu[0, 1] ({PROGRAM}:{line_of('flow.tanh(h)')})",
    ):
        assert text in ended.line
    assert ended.err.count("Traceback") == 1


def test_different_shapes_show_each_ranks_input(jobs: Jobs) -> None:
    ended = jobs.scene("different_shapes")
    assert ended.code == 81
    assert "rank 0: %0: float32[8, 8]" in ended.line and "rank 1: %0: float32[10, 8]" in ended.line


def test_the_end_of_a_forked_child_changes_nothing(jobs: Jobs) -> None:
    ended = jobs.scene("child_exits")
    assert ended.code == 0, ended.err
    assert ended.out.count("done") == 2
    assert "of a child" in ended.err  # it shows its error as any program does


def test_a_rank_that_makes_fewer_steps_and_leaves_is_named(jobs: Jobs) -> None:
    ended = jobs.scene("fewer_steps")
    assert ended.code == 85 and "rank 1 exited 0 while peers run" in ended.line


def test_a_rank_that_makes_fewer_steps_and_waits_elsewhere_is_found(jobs: Jobs) -> None:
    ended = jobs.scene("fewer_steps_and_barrier")
    assert ended.code == 81 and "reason=DESYNC" in ended.line
    assert re.search(r"rank 0: step 11 of graph Train\w* at .*failing_program.py:\d+", ended.line)
    assert f"rank 1: barrier at {PROGRAM}:{line_of('flow.comm.barrier()')}" in ended.line
    assert ended.err.count("Traceback") == 1


def test_eager_ops_in_different_order_show_each_ranks_call(jobs: Jobs) -> None:
    ended = jobs.scene("eager_order")
    assert ended.code == 81
    assert re.search(r"rank 0: .*float32\[8, 8\].*failing_program.py:\d+", ended.line)
    assert re.search(r"rank 1: .*float32\[4, 8\].*failing_program.py:\d+", ended.line)


# ---- mistakes every rank makes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scene", "text"),
    [
        ("wrong_shapes", r"ShapeError: matmul: a float32\[6, 8\].*\(.*:\d+, in module bad\)"),
        ("no_signature", r"SbpError: sort_rows \(.*failing_program.py:\d+\): no SBP signature"),
        ("input_meta", "GraphError: nn.Graph ONLY accepts static inputs tensor meta"),
        ("far_placement", "PlacementError: Placement is invalid because rank must be less than"),
        ("uneven_batch", "ShapeError: Sizes of tensors in dimension 0 must be same"),
        ("pieces", "ShapeError: .* must be divisible by the 3 gradient accumulation steps"),
    ],
)
def test_a_mistake_of_all_is_shown_once(jobs: Jobs, scene: str, text: str) -> None:
    ended = jobs.scene(scene)
    assert ended.code == 1, ended.err
    assert re.search(text, ended.line), ended.line
    assert ended.err.count("Traceback") == 1


# ---- starting and stopping -----------------------------------------------------------------------


def test_a_rank_that_never_joins_is_named(jobs: Jobs) -> None:
    ended = jobs.launch(str(PROGRAM), "absent", str(jobs.folder), flags=("--rdzv_timeout", "1.5"))
    assert ended.code == 84
    assert "reason=RENDEZVOUS_TIMEOUT rank=0" in ended.line and "rank 1; were they" in ended.line
    assert "Traceback" not in ended.err


def test_two_jobs_run_beside_each_other(jobs: Jobs) -> None:
    script = (str(PROGRAM), "few", str(jobs.folder))
    both = [jobs.start(*LAUNCH, "--standalone", *script)]
    both += [jobs.start(*LAUNCH, "--master_port", str(free_port()), *script)]
    for ended in map(jobs.finish, both):
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.count("done") == 2


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("scene", ["forever", "long_compile"])
def test_a_signal_ends_a_job_at_once(jobs: Jobs, scene: str, signum: int, code: int) -> None:
    process = jobs.start(*LAUNCH, "--standalone", str(PROGRAM), scene, str(jobs.folder))
    jobs.wait_here()
    process.send_signal(signum)
    ended = jobs.finish(process)
    assert ended.code == code
    assert "state=CANCELLED" in ended.line
    assert ended.err.count("Traceback") <= 1
    assert ended.seconds < 15


# ---- two terminals -------------------------------------------------------------------------------


def test_two_terminals_train(jobs: Jobs) -> None:
    ranks = jobs.by_hand(str(DIGITS), "--epochs", "1")
    ended = [jobs.finish(rank) for rank in ranks]
    assert [(e.code, e.err) for e in ended] == [(0, ""), (0, "")]
    assert "test accuracy" in ended[0].out


@pytest.mark.parametrize(
    ("scene", "args", "codes"),
    [
        ("raise_later", ("1",), (85, 1)),
        ("raise_later", ("0",), (1, 85)),
        ("exit_", ("7", "1"), (85, 7)),
        ("exit_", ("0", "0"), (0, 85)),
        ("kill", ("0",), (-9, 85)),
        ("kill", ("1",), (85, -9)),
        ("different_graphs", (), (81, 81)),
    ],
)
def test_without_a_launcher_each_rank_has_its_own_exit_code(
    jobs: Jobs, scene: str, args: tuple[str, ...], codes: tuple[int, int]
) -> None:
    ranks = jobs.by_hand(str(PROGRAM), scene, str(jobs.folder), *args)
    ended = [jobs.finish(rank) for rank in ranks]
    assert (ended[0].code, ended[1].code) == codes
    for one in ended:
        if one.code == 85:
            last = one.err.splitlines()[-1]
            assert last.startswith("oneflow: PeerLostError: rank ") and "Traceback" not in one.err


def test_an_error_of_the_compiler_is_the_same_on_all_ranks(jobs: Jobs) -> None:
    ended = [jobs.finish(rank) for rank in jobs.by_hand(str(PROGRAM), "no_signature")]
    assert [one.code for one in ended] == [1, 1]
    told = [one.err.splitlines()[-1].partition("SbpError: ")[2] for one in ended]
    assert told[0].startswith("sort_rows (") and told[0][:200] == told[1][:200]
    assert sum("Traceback" in one.err for one in ended) == 1


def test_a_taken_port_is_named(jobs: Jobs) -> None:
    port = str(free_port())
    first = jobs.start(*LAUNCH, "--master_port", port, str(PROGRAM), "forever", str(jobs.folder))
    jobs.wait_here()
    refused = jobs.finish(jobs.start(*LAUNCH, "--master_port", port, str(PROGRAM), "few"))
    assert refused.code == 78 and f"port {port} on 127.0.0.1 is in use by pid" in refused.line
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    by_hand = jobs.finish(jobs.start(str(PROGRAM), "few", **world, RANK="0", LOCAL_RANK="0"))
    assert by_hand.code == 78 and f"port {port} on 127.0.0.1 is in use" in by_hand.err
    first.terminate()
    assert jobs.finish(first).code == 143


# ---- checkpoints ---------------------------------------------------------------------------------


def test_a_corrupt_checkpoint_is_refused_by_all(jobs: Jobs) -> None:
    saved = jobs.folder / "saved"
    first = jobs.launch(str(DIGITS), "--epochs", "2", "--stop-after", "1", "--save", str(saved))
    assert first.code == 0, first.err
    (file,) = [path for path in saved.iterdir() if path.is_file()]
    file.write_bytes(file.read_bytes()[:-100])
    before = {path: path.read_bytes() for path in saved.iterdir()}
    again = ("--epochs", "2", "--resume", str(saved), "--save", str(saved))
    ended = jobs.launch(str(DIGITS), *again)
    assert ended.code == 83 and "reason=CHECKPOINT_INVALID" in ended.line
    assert file.name in ended.line
    assert {path: path.read_bytes() for path in saved.iterdir()} == before
