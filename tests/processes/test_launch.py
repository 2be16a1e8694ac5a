"""The launcher with real processes.

exit codes, nothing left behind, one line that names the cause.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from oneflow.core.processors import usable_processors
from oneflow.scheduler.ports import free_port
from tests.support.processes import has_ipv6_loopback
from tests.support.waiting import WAIT_S, wait_until

LATER = pytest.mark.slow
LAUNCH = [sys.executable, "-m", "oneflow.distributed.launch"]
QUICK = ["--standalone", "--grace-period", "0.5"]
PATIENT = ["--standalone", "--grace-period", "60"]  # where ranks still have something to say
SMALL = "--no_fork"  # of ranks that import nothing: interpreters of their own start sooner


def clean_env(**more: str) -> dict[str, str]:
    ours = ("ONEFLOW_", "MASTER_", "WORLD_SIZE", "RANK", "LOCAL_RANK", "OMP_NUM_THREADS")
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return env | {"OMP_NUM_THREADS": "1"} | more


def write(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text("import os, sys, time, signal\nrank = int(os.environ['RANK'])\n" + text)
    return str(path)


def launch(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LAUNCH, *args], env=env or clean_env(), capture_output=True, text=True, timeout=WAIT_S
    )


def cause_lines(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("oneflow: job=")]


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_world_variables_are_set_for_each_rank(tmp_path: Path) -> None:
    names = ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "OMP_NUM_THREADS"]
    script = write(
        tmp_path,
        f"import json\nopen(sys.argv[1] + str(rank), 'w').write(json.dumps("
        f"{{k: os.environ[k] for k in {names}}} | {{'token': os.environ['ONEFLOW_JOB_TOKEN']}}))",
    )
    env = clean_env()
    del env["OMP_NUM_THREADS"]
    done = launch(*QUICK, "--nproc_per_node=2", script, str(tmp_path / "env"), env=env)
    assert done.returncode == 0, done.stderr
    share = str(max(1, usable_processors() // 2))
    assert f"OMP_NUM_THREADS={share} for each of 2 processes" in done.stderr
    zero, one = (json.loads((tmp_path / f"env{rank}").read_text()) for rank in (0, 1))
    assert (zero["RANK"], one["RANK"], one["LOCAL_RANK"]) == ("0", "1", "1")
    assert zero["WORLD_SIZE"] == "2" and zero["OMP_NUM_THREADS"] == share
    assert zero["MASTER_PORT"] == one["MASTER_PORT"]
    assert zero["token"] == one["token"] and len(zero["token"]) == 64


SUM = """
import oneflow as flow
split = flow.arange(200_000, placement=flow.placement("cpu", [0, 1]), sbp=flow.sbp.split(0))
whole = split.to_global(sbp=flow.sbp.broadcast).to_local()
print(rank, os.environ["MASTER_ADDR"], whole.sum().item())
"""


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no ::1")
def test_two_nodes_meet_over_ipv6(tmp_path: Path) -> None:
    # `free_port` would claim it, as the first node does.
    script, port = write(tmp_path, SUM), random.randrange(15_000, 32_000)
    meeting = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=[::1]:{port}"]
    nodes = [
        subprocess.Popen(
            [*LAUNCH, *meeting, script],
            env=clean_env(ONEFLOW_HOST_IDENTITY=str(number)),  # different: tensors go over TCP
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    try:
        said = sorted(node.communicate(timeout=WAIT_S)[0].split() for node in nodes)
    finally:
        for node in nodes:
            node.terminate()
            node.communicate()
    total = str(sum(range(200_000)))
    assert said == [["0", "::1", total], ["1", "::1", total]]


TRIES = """
names = ("RUN_ID", "RESTART_COUNT", "MAX_RESTARTS")
print(rank, *(os.environ["TORCHELASTIC_" + name] for name in names))
print(os.environ["LOCAL_WORLD_SIZE"], file=sys.stderr)
sys.exit(rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""


def test_a_usual_line_of_torchrun_runs(tmp_path: Path) -> None:
    line = "--nnodes=1 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=j7 --role=w"
    logs = ["--max-restarts=1", "--tee", "0:1,1:3", "-r", "0:2", "--log-dir", str(tmp_path)]
    done = launch(
        *line.split(), *logs, SMALL, write(tmp_path, TRIES), env=clean_env(PET_NPROC_PER_NODE="2")
    )
    assert done.returncode == 0, done.stderr
    (restarting,) = cause_lines(done.stderr)
    assert "job=j7 attempt=1 state=RESTARTING" in restarting and "rank=1" in restarting
    host = socket.gethostname()
    assert f"{host}:0: 0 j7 1 1" in done.stdout and f"{host}:1: 1 j7 1 1" in done.stdout
    assert f"{host}:1: 2" in done.stderr and f"{host}:0: 2" not in done.stderr
    found = {
        str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.glob("local*/*")
    }
    assert found == {
        "local_rank_0/stdout": "0 j7 1 1\n",
        "local_rank_0/stderr": "2\n",
        "local_rank_1/stdout": "1 j7 1 1\n",
        "local_rank_1/stderr": "2\n",
    }


def test_success_says_nothing(tmp_path: Path) -> None:
    done = launch(*QUICK, "--nproc_per_node", "2", write(tmp_path, ""))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


OWN = """
import numpy as np
import oneflow as flow
own = int(np.random.randint(1 << 62)), float(flow.rand(1)), os.getpid(), os.getsid(0)
print(repr((rank, flow.env.get_rank(), own, sys.argv[1:])))
print(sys.stdin.read(9), file=sys.stderr)
"""


@pytest.mark.parametrize("flags", [[], ["--no_fork"]])
def test_ranks_share_nothing_but_what_they_import(flags: list[str], tmp_path: Path) -> None:
    script = write(tmp_path, OWN)
    flags = [*flags, "--redirect-stdout-and-stderr", "--logdir", str(tmp_path)]
    command = [*LAUNCH, *QUICK, "--nproc_per_node=3", *flags, script, "--fork", "3"]
    done = subprocess.run(
        command, env=clean_env(), input="to rank 0", capture_output=True, text=True, timeout=WAIT_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    logs = [tmp_path / f"local_rank_{rank}" for rank in range(3)]
    assert [(log / "stderr").read_text().strip() for log in logs] == ["to rank 0", "", ""]
    found = [eval((log / "stdout").read_text()) for log in logs]
    for number, (rank, seen, _, words) in enumerate(found):
        assert (rank, seen, words) == (number, number, ["--fork", "3"])
    for drawn in zip(*(own for _, _, own, _ in found), strict=True):
        assert len(set(drawn)) == 3, drawn


@pytest.mark.parametrize(
    "own", ["oneflow/__init__.py", pytest.param("oneflow.py", marks=LATER), "queue.py"]
)
def test_a_module_beside_the_script_is_the_one_that_ranks_import(own: str, tmp_path: Path) -> None:
    (tmp_path / own).parent.mkdir(exist_ok=True)
    (tmp_path / own).write_text("mine = True")
    name = Path(own).parts[0].removesuffix(".py")
    # Ranks that share a stream mix what they write, and `print` writes each word by itself.
    script = write(tmp_path, f"import {name}\nsys.stdout.write(f'{{rank}} {{{name}.mine}}\\n')")
    done = launch(*QUICK, "--nproc_per_node=2", "--log-line-prefix-template=", script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 True", "1 True"]


def test_ranks_of_a_launcher_without_streams_have_their_own(tmp_path: Path) -> None:
    script = write(tmp_path, "print(rank)\nprint(rank, file=sys.stderr)")
    flags = ["--nproc_per_node=2", "--redirect-stdout-and-stderr", "--logdir", str(tmp_path)]
    closing = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    command = [*closing, *LAUNCH, *QUICK, *flags, script]
    assert subprocess.run(command, env=clean_env(), timeout=WAIT_S).returncode == 0
    logs = [tmp_path / f"local_rank_{rank}" for rank in range(2)]
    found = [[(log / name).read_text() for name in ("stdout", "stderr")] for log in logs]
    assert found == [["0\n"] * 2, ["1\n"] * 2]


def test_without_launcher_the_world_variables_stay_unset() -> None:
    program = (
        "import os, oneflow\n"
        "print([k for k in ('MASTER_ADDR','MASTER_PORT','WORLD_SIZE','RANK','LOCAL_RANK')"
        " if k in os.environ])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean_env(), capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("how", "code", "reason"),
    [
        ("sys.exit(7)", 7, "USER_ERROR"),
        ("os.kill(os.getpid(), 9)", 137, "SIGNAL"),
        pytest.param("raise ValueError('boom')", 1, "USER_ERROR", marks=LATER),
        pytest.param("os._exit(3)", 3, "USER_ERROR", marks=LATER),
        pytest.param("os.kill(os.getpid(), signal.SIGSEGV)", 139, "SIGNAL", marks=LATER),
    ],
)
def test_first_failing_rank_gives_the_exit_code(
    tmp_path: Path, how: str, code: int, reason: str
) -> None:
    script = write(tmp_path, f"if rank == 1:\n    {how}\ntime.sleep(600)")
    done = launch(*QUICK, "--nproc_per_node", "2", script)
    assert done.returncode == code
    (line,) = cause_lines(done.stderr)
    assert done.stderr.splitlines()[-1] == line
    expected = rf"oneflow: job=local attempt=1 state=FAILED reason={reason} rank=1 host=\S+ "
    assert re.match(expected + rf'pid=\d+ exit={code} cause=".+"$', line)


@pytest.mark.parametrize(
    ("code", "status"),
    [("-1", 255), *(pytest.param(*found, marks=LATER) for found in (("256", 0), ("True", 1)))],
)
def test_a_joined_rank_ends_with_the_status_of_its_code(
    tmp_path: Path, code: str, status: int
) -> None:
    joins = "import oneflow\noneflow.comm.barrier()\nsys.exit({})"
    script = write(tmp_path, joins.format(f"{code} if rank else 0"))
    done = launch(*QUICK, "--nproc_per_node", "2", script)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


def test_error_record_gives_type_text_and_line(tmp_path: Path) -> None:
    script = write(tmp_path, "if rank == 1:\n    raise KeyError('missing weight')\ntime.sleep(600)")
    done = launch(*QUICK, "--nproc_per_node", "2", script)
    (line,) = cause_lines(done.stderr)
    assert "KeyError: 'missing weight' (script.py:4)" in line
    assert "worker.py" not in done.stderr  # the traceback shows the script's frames only


def test_an_error_is_shown_though_another_rank_ends_first(tmp_path: Path) -> None:
    """Its end has the launcher tell all to end, those that are about to say why among them."""
    body = f"""
def show(kind, error, trace):
    open(r'{tmp_path}/shows', 'w').close()
    while os.path.exists('/proc/' + open(r'{tmp_path}/pid').read()):
        time.sleep(0.005)
    time.sleep(0.2)
    print('shown', file=sys.stderr)

if rank == 0:
    sys.excepthook = show
    while not os.path.exists(r'{tmp_path}/pid'):
        time.sleep(0.005)
    raise ValueError('boom')
open(r'{tmp_path}/new', 'w').write(str(os.getpid()))
os.rename(r'{tmp_path}/new', r'{tmp_path}/pid')
while not os.path.exists(r'{tmp_path}/shows'):
    time.sleep(0.005)
sys.exit(3)
"""
    done = launch(*PATIENT, "--nproc_per_node", "2", write(tmp_path, body))
    assert done.returncode == 3
    assert f"{socket.gethostname()}:0: shown" in done.stderr.splitlines()


def test_error_of_ours_gives_its_exit_code_and_reason(tmp_path: Path) -> None:
    body = "from oneflow.core.errors import DesyncError\nraise DesyncError('ranks differ')"
    done = launch(*QUICK, write(tmp_path, body))
    assert done.returncode == 81
    assert "reason=DESYNC" in cause_lines(done.stderr)[0]


def test_follower_is_not_the_cause(tmp_path: Path) -> None:
    """Though it ends first, as here, where the other still has to take its interpreter down."""
    body = f"""
path = r'{tmp_path}/here'
if rank == 0:
    while not os.path.exists(path):
        time.sleep(0.005)
    os._exit(85)
open(path, 'w').close()
sys.exit(9)
"""
    flags = [SMALL, "--nproc_per_node", "2"]  # a small interpreter is taken down in time
    done = launch(*QUICK, *flags, write(tmp_path, body))
    assert done.returncode == 9
    assert "rank=1" in cause_lines(done.stderr)[0]


def test_only_followers_give_85(tmp_path: Path) -> None:
    done = launch(*QUICK, "--nproc_per_node", "2", write(tmp_path, "sys.exit(85)"))
    assert done.returncode == 85
    assert "reason=PEER_LOST" in cause_lines(done.stderr)[0]


def test_a_stuck_rank_shows_where_it_is_stuck(tmp_path: Path) -> None:
    program = str(Path(__file__).with_name("rank_program.py"))
    env = clean_env(ONEFLOW_HEARTBEAT_SECONDS="0.3")
    done = launch(*QUICK, "--nproc_per_node", "2", program, "stuck", env=env)
    assert done.returncode == 85
    (line,) = cause_lines(done.stderr)
    assert "reason=PEER_LOST" in line and "rank 1 (host" in line and "no heartbeat" in line
    stuck = [text for text in done.stderr.splitlines() if "hold_the_interpreter" in text]
    assert len(stuck) == 1 and f"{socket.gethostname()}:1: " in stuck[0]


def test_nothing_is_left_of_peers_that_ignore_sigterm_or_left_the_session(tmp_path: Path) -> None:
    body = f"""
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(['sleep', '300'])
lost = subprocess.Popen(['sleep', '300'], start_new_session=True)
open(r'{tmp_path}/pids' + str(rank), 'w').write(f'{{os.getpid()}} {{child.pid}} {{lost.pid}}')
if rank == 1:
    path = r'{tmp_path}/pids0'
    while not (os.path.exists(path) and os.path.getsize(path)):
        time.sleep(0.02)
    os.kill(os.getpid(), 9)
time.sleep(300)
"""
    done = launch(*QUICK, "--nproc_per_node", "2", write(tmp_path, body))
    assert done.returncode == 137
    pids = [int(p) for rank in (0, 1) for p in (tmp_path / f"pids{rank}").read_text().split()]
    assert len(pids) == 6
    assert not [pid for pid in pids if is_alive(pid)]


def test_orphans_are_ended_after_a_success_too(tmp_path: Path) -> None:
    body = f"""
import subprocess
lost = subprocess.Popen(['sleep', '300'], start_new_session=True)
open(r'{tmp_path}/pid', 'w').write(str(lost.pid))
"""
    assert launch(*QUICK, write(tmp_path, body)).returncode == 0
    assert not is_alive(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_to_the_launcher_ends_all(tmp_path: Path, signum: int, code: int) -> None:
    body = f"open(r'{tmp_path}/pid' + str(rank), 'w').write(str(os.getpid()))\ntime.sleep(300)"
    script = write(tmp_path, body)
    process = subprocess.Popen(
        [*LAUNCH, *QUICK, "--nproc_per_node", "2", script],
        env=clean_env(),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell may ignore it
    )
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    wait_until(lambda: all(f.exists() and f.read_text() for f in files))
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == code
    (line,) = cause_lines(stderr)
    assert "state=CANCELLED" in line and f"exit={code}" in line
    assert not [f for f in files if is_alive(int(f.read_text()))]


def test_nohup_is_respected(tmp_path: Path) -> None:
    body = f"open(r'{tmp_path}/pid', 'w').write(str(os.getpid()))\ntime.sleep(1)"
    process = subprocess.Popen(
        [*LAUNCH, *QUICK, write(tmp_path, body)],
        env=clean_env(),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    wait_until(lambda: (tmp_path / "pid").exists())
    process.send_signal(signal.SIGHUP)
    assert process.wait(WAIT_S) == 0


def test_ranks_die_with_a_killed_launcher(tmp_path: Path) -> None:
    body = f"open(r'{tmp_path}/pid', 'w').write(str(os.getpid()))\ntime.sleep(300)"
    process = subprocess.Popen([*LAUNCH, *QUICK, write(tmp_path, body)], env=clean_env())
    file = tmp_path / "pid"
    wait_until(lambda: file.exists() and file.read_text())
    process.kill()
    process.wait(WAIT_S)
    wait_until(lambda: not is_alive(int(file.read_text())))


def test_port_in_use_is_an_error_that_names_the_holder(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = launch("--master_port", str(port), write(tmp_path, ""))
    assert done.returncode == 78
    (line,) = cause_lines(done.stderr)
    assert f"port {port} on 127.0.0.1 is in use by pid {os.getpid()}" in line
    assert "--standalone" in line


def test_two_standalone_runs_side_by_side(tmp_path: Path) -> None:
    body = """
import socket
if rank == 0:
    server = socket.create_server(('127.0.0.1', int(os.environ['MASTER_PORT'])))
    time.sleep(0.5)
"""
    command = [*LAUNCH, *QUICK, SMALL, "--nproc_per_node", "2", write(tmp_path, body)]
    runs = [subprocess.Popen(command, env=clean_env()) for _ in range(2)]
    assert [run.wait(WAIT_S) for run in runs] == [0, 0]


def test_lines_carry_their_rank_and_bad_bytes_do_no_harm(tmp_path: Path) -> None:
    body = r"""
sys.stdout.buffer.write(b"caf\xc3\xa9 \xff \x1b]0;title\x07 end\n")
sys.stdout.buffer.write(b"no line end")
sys.stdout.flush()
"""
    done = launch(*QUICK, "--nproc_per_node", "2", write(tmp_path, body))
    host = socket.gethostname()
    for rank in (0, 1):
        assert f"{host}:{rank}: café \\xff \\x1b]0;title\\x07 end\n" in done.stdout
        assert f"{host}:{rank}: no line end\n" in done.stdout


def test_prefix_template_and_rank_filter(tmp_path: Path) -> None:
    script = write(tmp_path, "print('hello')")
    template = ["--log-line-prefix-template", "[${local_rank}] "]
    flags = [*QUICK, SMALL, "--nproc_per_node", "2"]
    shown = launch(*flags, *template, "--local-ranks-filter", "1", script)
    assert shown.stdout == "[1] hello\n"
    plain = launch(*flags, "--log_line_prefix_template", "", script)
    assert sorted(plain.stdout) == sorted("hello\nhello\n")  # straight from both, as it comes


def test_redirect_writes_one_file_per_rank_and_stream(tmp_path: Path) -> None:
    body = f"""
print('out', rank)
print('err', rank, file=sys.stderr)
if rank == 0:
    open(r'{tmp_path}/said', 'w').close()
    sys.exit(0)
while not os.path.exists(r'{tmp_path}/said'):  # its end is the end of all
    time.sleep(0.02)
sys.exit(1)
"""
    script = write(tmp_path, body)
    logs = tmp_path / "logs"
    args = [SMALL, "--redirect_stdout_and_stderr", "--logdir", str(logs), "--nproc_per_node", "2"]
    done = launch(*QUICK, *args, script)
    assert done.stdout == ""
    for rank in (0, 1):
        assert (logs / f"local_rank_{rank}" / "stdout").read_text() == f"out {rank}\n"
        assert (logs / f"local_rank_{rank}" / "stderr").read_text() == f"err {rank}\n"
    assert f"log={logs}/local_rank_1/stderr" in cause_lines(done.stderr)[0]


def test_ctrl_c_shows_one_traceback_however_the_ranks_meet_it(tmp_path: Path) -> None:
    """Also where no scheduler can say any more that another rank was first."""
    script = write(
        tmp_path,
        f"""
from oneflow.distributed import ending
ending.watch(lambda error: False, lambda: True)  # joined, and nobody is known to have failed
try:
    raise ValueError('at work')
except ValueError:
    open(r'{tmp_path}/here' + str(rank), 'w').close()
    time.sleep(600)
""",
    )
    with subprocess.Popen(
        [*LAUNCH, *PATIENT, "--nproc_per_node", "2", script],
        env=clean_env(),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as job:
        wait_until(lambda: all((tmp_path / f"here{rank}").exists() for rank in (0, 1)))
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=WAIT_S)
    assert job.returncode == 130 and err.count("Traceback") == 1
    assert err.count("as another rank: KeyboardInterrupt") == 1


def test_a_log_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    in_the_way = tmp_path / "logs"
    in_the_way.write_text("a file")
    args = ["--redirect_stdout_and_stderr", "--logdir", str(in_the_way), "--nproc_per_node", "2"]
    refused = launch(*QUICK, *args, write(tmp_path, "print('never')"))
    assert refused.returncode == 78 and "Traceback" not in refused.stderr
    assert f"--logdir '{in_the_way}': cannot write" in cause_lines(refused.stderr)[0]


def test_restart_runs_all_ranks_again(tmp_path: Path) -> None:
    body = f"""
attempt = os.environ['ONEFLOW_ATTEMPT']
open(r'{tmp_path}/ran' + attempt + '.' + str(rank), 'w').close()
if attempt == '1' and rank == 1:
    while not os.path.exists(r'{tmp_path}/ran1.0'):
        time.sleep(0.02)
    sys.exit(5)
"""
    args = [SMALL, "--max-restarts", "2", "--nproc_per_node", "2"]
    done = launch(*QUICK, *args, write(tmp_path, body))
    assert done.returncode == 0
    assert sorted(p.name for p in tmp_path.glob("ran*")) == ["ran1.0", "ran1.1", "ran2.0", "ran2.1"]
    assert "attempt=1 state=RESTARTING reason=USER_ERROR rank=1" in cause_lines(done.stderr)[0]


def test_module_and_no_python(tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text("import sys\nprint(__name__, sys.argv[1:])")
    env = clean_env(PYTHONPATH=str(tmp_path))
    done = launch(*QUICK, "-m", "some_module", "a", "--b", env=env)
    assert done.stdout == "__main__ ['a', '--b']\n", done.stderr
    done = launch(*QUICK, "--no_python", "/bin/sh", "-c", "echo rank $RANK; exit 4")
    assert (done.stdout, done.returncode) == ("rank 0\n", 4)


def test_main_module_is_the_script(tmp_path: Path) -> None:
    helper = tmp_path / "beside.py"
    helper.write_text("value = 5")
    body = """
import pickle, __main__, beside
class Thing: pass
assert __main__.Thing is Thing and __name__ == '__main__' and __main__.__spec__ is None
assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
assert sys.argv == [__file__, 'x'] and sys.path[0] == os.path.dirname(os.path.realpath(__file__))
import atexit
atexit.register(lambda: print(Thing.__name__, beside.value))
"""
    done = launch(*QUICK, write(tmp_path, body), "x")
    assert (done.stdout, done.returncode) == ("Thing 5\n", 0), done.stderr


def test_flags_from_the_environment_and_their_origin(tmp_path: Path) -> None:
    env = clean_env(ONEFLOW_LAUNCH_NPROC_PER_NODE="3", ONEFLOW_LAUNCH_GRACE_PERIOD="2.5")
    done = launch("--grace_period", "1", "--print-config", env=env)
    assert re.search(r"nproc_per_node +3 +\(ONEFLOW_LAUNCH_NPROC_PER_NODE\)", done.stdout)
    assert re.search(r"grace_period +1.0 +\(flag\)", done.stdout)
    assert re.search(r"master_port +29500 +\(default\)", done.stdout)
    bad = launch("--print-config", env=clean_env(ONEFLOW_LAUNCH_NNODES="many"))
    assert bad.returncode == 78 and "ONEFLOW_LAUNCH_NNODES" in bad.stderr


def test_missing_script_is_one_line(tmp_path: Path) -> None:
    done = launch(*QUICK, str(tmp_path / "none.py"))
    assert done.returncode == 78
    assert len(done.stderr.splitlines()) == 1
    assert launch("--nproc_per_node", "zero", "x.py").returncode == 2


def launch_nodes(folder: Path, scene: str) -> list[tuple[int, str, str]]:
    """Two launchers with two ranks each, as on two machines: (exit code, stdout, stderr)."""
    program = str(Path(__file__).with_name("rank_program.py"))
    port = str(free_port())
    env = clean_env(ONEFLOW_HEARTBEAT_SECONDS="0.3", ONEFLOW_JOB_TOKEN="shared" * 8)
    runs = []
    for node in ("1", "0"):
        where = ["--nnodes", "2", "--node_rank", node, "--nproc_per_node", "2"]
        args = [*where, "--master_port", port, "--grace-period", "0.5", "--rdzv-timeout", "120"]
        run = subprocess.Popen(
            [*LAUNCH, *args, program, scene, str(folder)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        runs.insert(0, run)
    outputs = [run.communicate(timeout=WAIT_S) for run in runs]
    return [(run.returncode, *output) for run, output in zip(runs, outputs, strict=True)]


def test_two_nodes_make_one_world(tmp_path: Path) -> None:
    for node, (code, out, err) in enumerate(launch_nodes(tmp_path, "work")):
        assert code == 0, err
        host = socket.gethostname()
        lines = [f"{host}:{rank}: 0,1,2,3 6000001" for rank in (2 * node, 2 * node + 1)]
        assert sorted(out.splitlines()) == lines


def test_a_node_whose_ranks_only_follow_says_so(tmp_path: Path) -> None:
    first, second = launch_nodes(tmp_path, "exit 7")
    assert (first[0], second[0]) == (7, 85)
    (cause,) = cause_lines(second[2])
    assert "reason=PEER_LOST" in cause and "rank 1 on host" in cause and "boom" in cause
