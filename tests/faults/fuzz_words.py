"""Words that people type: the command line, files of settings, variables, times, layouts, texts."""

from __future__ import annotations

import io
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import click

from oneflow.core.errors import OneFlowError

from .fuzz_inputs import Verdict, judged, mutated, text_mutated, watched

PARSED_ONLY = {
    ("cluster", "up"), ("cluster", "down"), ("cluster", "init-tls"), ("scheduler", "run"),
    ("daemon", "run"), ("launch",), ("top",), ("doctor",), ("cluster", "token", "revoke"),
    ("cluster", "drain"), ("scheduler", "health"), ("daemon", "health"),
}  # fmt: skip
"""They would start processes, look at the machine, wait, or take what other inputs need."""

DEAD = "127.0.0.1:1"
ADDRESSES = (DEAD, "[::1]:1", "", ":", "127.0.0.1", "127.0.0.1:\u00b2", "127.0.0.1:99999", ":" * 9)
VALUES = (
    "0", "1", "-1", "2", "0-3", "0,3", "3-1", "1e9", "9" * 30, "9" * 5000, "2h", "90s", "1h30m",
    "0.5", "-5s", "inf", "nan", "x", "", " ", "state=RUNNING", "state=nothing", "name=x", "a=b",
    "=", "a=", "cpu", "cuda", "cpu:0", "stdout", "json", "wide", "table", "admin", "view", "..",
    "/", "/dev/null", "/nowhere/x", "\u00e9", "\u0663", "\x1b[31m", "a" * 300, "-", "--", "a,b",
    "2026-11-21T10:00:00Z", "10:00", "1GiB", "5MB", "USER_ERROR", "137", "\udcff",
)  # fmt: skip


# ---- texts ---------------------------------------------------------------------------------------


@cache
def readers() -> list[tuple[str, Callable[[str], Any]]]:
    """A good text, and who reads it."""
    from oneflow.cluster.durations import parse_duration, parse_moment
    from oneflow.cluster.settings import load_settings
    from oneflow.cluster.sizes import parse_size
    from oneflow.core.config import Config, split_address
    from oneflow.core.device import Device
    from oneflow.core.dtype import dtype_of
    from oneflow.core.graph_text import parse_attrs, parse_graph
    from oneflow.core.placement import parse_placement
    from oneflow.core.sbp import parse_nd_sbp, parse_sbp
    from oneflow.core.tensor_type import parse_type
    from oneflow.scheduler.jobs.limits import check_job_id
    from oneflow.scheduler.jobs.tokens import check_name, token_from
    from oneflow.services.failpoints import parse

    def variable(name: str) -> Callable[[str], Any]:
        return lambda text: Config.from_env({name: text.replace("\0", "")})

    def world(text: str) -> Any:
        names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
        return Config.from_env(dict(zip(names, (text.split() + ["1"] * 4)[:4], strict=True)))

    def setting(name: str) -> Callable[[str], Any]:
        env = {"ONEFLOW_CONFIG_DIR": "/nowhere"}
        return lambda text: load_settings(env={**env, name: text.replace("\0", "")})

    found: list[tuple[str, Callable[[str], Any]]] = [
        ("worker.step=sleep:2@hit=3;ckpt.write=error:EIO", parse),
        ("1h30m", parse_duration),
        ("127.0.0.1:9400", split_address),
        ("127.0.0.1 29500 4 1", world),
        ("cpu[[0, 1], [2, 3]]", parse_placement),
        ("S(1)", parse_sbp),
        ("(S(0), B)", parse_nd_sbp),
        ("float32[3, 4]", parse_type),
        ("float32", dtype_of),
        ("cuda:1", Device),
        ("job-1_x", check_job_id),
        ("me@host", check_name),
        ("oft_0123456789abcdef", lambda t: token_from({"ONEFLOW_AUTH_TOKEN": t}, Path("/x"))),
        ("axis=1, keep=True, dtype=float32, name='x'", parse_attrs),
        ("512MiB", parse_size),
        ("2026-11-21T06:11:19Z", parse_moment),
        (GRAPH, parse_graph),
    ]
    for name, text in VARIABLES.items():
        found.append((text, variable(name)))
    for name, text in SETTINGS.items():
        found.append((text, setting(name)))
    return found


def _launch(text: str) -> Any:
    """The launcher's own words; argparse ends what it does not understand with 2."""
    from oneflow.launcher.flags import parse

    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        try:
            return parse(text.split(), {})
        except SystemExit as error:
            if error.code not in (0, 2):
                raise
    return None


LAUNCH = "--nproc_per_node 2 --master_port=29500 --max_restarts 1 x.py a b"
GRAPH = """graph g pieces=1 {
  %0: float32[4, 6] S(0) = input(; name='x') @cpu[0, 1]
  %1: float32[4, 6] ? = relu(%0) @cpu[0, 1]
  output(%1; index=0) @cpu[0, 1]
}"""
VARIABLES = {
    "ONEFLOW_TIMEOUT_SECONDS": "1.5",
    "ONEFLOW_HEARTBEAT_SECONDS": "0.2",
    "ONEFLOW_ATTEMPT": "1",
    "ONEFLOW_DEBUG": "1",
    "ONEFLOW_LOG_FORMAT": "json",
    "ONEFLOW_LOG_LEVEL": "INFO",
    "ONEFLOW_DATA_ROOTS": "/data:/more",
    "ONEFLOW_METRICS_ADDR": "127.0.0.1:9500",
    "ONEFLOW_SPIN_SECONDS": "0.00005",
}
SETTINGS = {
    "ONEFLOW_SCHEDULER_ADDRESS": "head:9400",
    "ONEFLOW_SCHEDULER_LISTEN": "127.0.0.1:0",
    "ONEFLOW_SCHEDULER_ALLOW_SCRIPTS": "true",
    "ONEFLOW_SCHEDULER_HOSTS": "a,b",
    "ONEFLOW_DAEMON_MEMORY_NBYTES": "1073741824",
    "ONEFLOW_LOCAL_DAEMONS": "4",
    "ONEFLOW_CLIENT_OUTPUT": "json",
}
CLUSTER_TOML = """[client]
address = "head:9400"
[scheduler]
allow_scripts = false
hosts = ["a", "b"]
[daemon]
memory_nbytes = 1073741824
"""
JOB_TOML = """argv = ["python", "train.py"]
devices = 2
name = "x"
time_limit = "2h"
restart_on = ["137", "NODE_LOST"]
[env]
A = "1"
"""


def fuzz_texts(verdict: Verdict, seeds: range) -> None:
    """Times, addresses, layouts, variables, settings, and files of TOML."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        path = Path(folder) / "x.toml"
        for seed in watched(seeds):
            rng = random.Random(seed)
            text, read = readers()[seed % len(readers())]
            if rng.random() < 0.1:
                text, read = rng.choice(((CLUSTER_TOML, _settings), (JOB_TOML, _job)))
                read = _from_file(path, read)
            if rng.random() < 0.002:  # argparse takes its time
                text, read = LAUNCH, _launch
            for _ in range(rng.choice((1, 1, 2))):
                text = text_mutated(rng, text)
            if rng.random() < 0.05:
                text = rng.choice(VALUES)
            with judged(verdict, seed, (OneFlowError,)):
                read(text)


def _from_file(path: Path, read: Callable[[Path], Any]) -> Callable[[str], Any]:
    def whole(text: str) -> Any:
        path.write_bytes(text.encode(errors="surrogateescape"))
        return read(path)

    return whole


def _settings(path: Path) -> Any:
    from oneflow.cluster.settings import load_settings

    return load_settings(file=path, env={"ONEFLOW_CONFIG_DIR": "/nowhere"})


def _job(path: Path) -> Any:
    from oneflow.cluster.submitting import OPTIONS, make_spec, read_job_file
    from oneflow.scheduler.jobs.limits import check_spec
    from oneflow.scheduler.jobs.records import JobKind

    asked = read_job_file(path)
    options = {name: asked[name] for name in OPTIONS if name in asked}
    check_spec(make_spec(JobKind.SCRIPT, options, argv=tuple(asked.get("argv", ("x",)))))


# ---- the command line ----------------------------------------------------------------------------


@cache
def commands() -> list[tuple[tuple[str, ...], click.Command]]:
    """Every verb there is, with its path."""
    from oneflow.cli.main import cli

    return sorted(_walk((), cli), key=lambda item: item[0])


def _walk(path: tuple[str, ...], command: click.Command) -> Iterator[Any]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None:
            yield from _walk((*path, name), found)


def words_for(rng: random.Random, path: Sequence[str], command: click.Command) -> list[str]:
    """A line that mostly makes sense to that verb."""
    words = list(path)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            words += [rng.choice((*VALUES, *JOBS)) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        elif rng.random() < 0.3:
            words.append(rng.choice(parameter.opts + parameter.secondary_opts))
            if not getattr(parameter, "is_flag", False):
                words.append(_value(rng, parameter))
    if rng.random() < 0.15:
        at = rng.randrange(len(words) + 1)
        words[at:at] = [rng.choice(("--", "-x", "--help", "-h", "--version", *VALUES))]
    if rng.random() < 0.1:
        at = rng.randrange(len(words))
        words[at] = text_mutated(rng, words[at])
    return [word.replace("\0", "") for word in words]


JOBS = ("done", "done", "nobody", "../x", "j" * 70)
"""`done` is one of the cluster that is asked."""


def _value(rng: random.Random, parameter: click.Parameter) -> str:
    if "--address" in parameter.opts:
        return rng.choice(ADDRESSES)
    if isinstance(parameter.type, click.Choice) and rng.random() < 0.7:
        return str(rng.choice(list(parameter.type.choices)))
    return rng.choice(VALUES)


def fuzz_words(verdict: Verdict, seeds: range) -> None:
    """Lines are parsed down to the verb, and nothing is run."""
    from oneflow.cli.main import cli

    declared = (click.ClickException, click.exceptions.Exit, OneFlowError)
    with open(os.devnull, "w") as nowhere:
        for seed in watched(seeds):
            rng = random.Random(seed)
            words = words_for(rng, *rng.choice(commands()))
            stdout, sys.stdout = sys.stdout, nowhere
            try:
                with judged(verdict, seed, declared):
                    _parse_words(cli, words)
            finally:
                sys.stdout = stdout


def _parse_words(command: Any, words: list[str]) -> None:
    context = None
    while True:
        context = command.make_context("oneflow", words, parent=context)
        first = getattr(context, "_protected_args", None)  # public until Click 8.2
        rest = [*(context.protected_args if first is None else first), *context.args]
        if not isinstance(command, click.Group) or not rest:
            return
        _, found, words = command.resolve_command(context, rest)
        command = found


def fuzz_commands(verdict: Verdict, seeds: range, cluster: Any, samples: list[Path]) -> None:
    """Verbs are run in this process. cluster: a connection that they share; None: to nobody.

    A traceback is a defect, and so is an error that is more than a line.
    """
    from click.testing import CliRunner

    from oneflow.cli.main import cli

    chosen = [(p, c) for p, c in commands() if p not in PARSED_ONLY]
    runner = CliRunner()
    with _instead_of_connect(cluster), _own_files() as folder:
        for seed in watched(seeds):
            rng = random.Random(seed)
            words = _harmless(words_for(rng, *rng.choice(chosen)), rng, samples)
            _write_config(rng, folder)
            with judged(verdict, seed, (SystemExit,)):
                result = runner.invoke(cli, words, prog_name="oneflow")
                if result.exception is not None:
                    raise result.exception
            if result.exit_code not in range(256):
                verdict.blame(f"seed {seed}: exit code {result.exit_code} of {words}")
            verdict.ends[f"exit {result.exit_code}"] += 1


def _harmless(words: list[str], rng: random.Random, samples: list[Path]) -> list[str]:
    """Nothing waits for ever; job files and checkpoints are there now and then."""
    if words[:2] == ["job", "wait"]:
        words[2:2] = ["--timeout", rng.choice(("0", "10ms"))]
    if rng.random() < 0.1 and words[0] in ("ckpt", "job"):
        words.append(str(rng.choice(samples)))
    return words


@contextmanager
def _own_files() -> Iterator[Path]:
    """Settings and the current folder are of the fuzzer's own, and empty."""
    before, here = dict(os.environ), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        names = ("config", "state", "runtime")
        for name in names:
            (Path(folder) / name).mkdir(mode=0o700)
        os.environ["ONEFLOW_CONFIG_DIR"] = f"{folder}/config"
        os.environ["ONEFLOW_STATE_DIR"] = f"{folder}/state"
        os.environ["XDG_RUNTIME_DIR"] = f"{folder}/runtime"
        os.chdir(folder)
        try:
            yield Path(folder) / "config"
        finally:
            os.chdir(here)
            os.environ.clear()
            os.environ.update(before)


def _write_config(rng: random.Random, folder: Path) -> None:
    """Mostly none."""
    path = folder / "config.toml"
    path.unlink(missing_ok=True)
    if rng.random() < 0.05:
        path.write_bytes(mutated(rng, CLUSTER_TOML.encode()))


@contextmanager
def _instead_of_connect(cluster: Any) -> Iterator[None]:
    """Asks for no address, or for the cluster's, and gets a connection that stays open."""
    from oneflow.cli import submit
    from oneflow.cluster import client
    from oneflow.cluster.connection import Patience

    real = client.connect
    patience = Patience(0.0, 0.0)

    def connect(address: str | None = None, token: str | None = None, **more: Any) -> Any:
        if address is None and cluster is not None:
            return _Shared(cluster)
        return real(address or DEAD, token, **{"patience": patience, **more})

    client.connect = submit.connect = connect
    try:
        yield
    finally:
        client.connect = submit.connect = real


class _Shared:
    """A cluster that its users cannot close, and which takes no new jobs: it says what it would."""

    def __init__(self, cluster: Any) -> None:
        from oneflow.cluster.client import Cluster

        self._cluster = Cluster(_NoSubmit(cluster.connection))

    def __enter__(self) -> Any:
        return self._cluster

    def __exit__(self, *_: Any) -> None:
        return None


class _NoSubmit:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def call(self, service: str, method: str, request: Any, *args: Any, **more: Any) -> Any:
        from oneflow.protos import cluster_pb2 as pb

        if method == "Submit":
            request = request() if callable(request) else request
            return pb.JobRecord(id=request.job_id, spec=request.spec, state="SUCCEEDED")
        if method == "Upload":
            return pb.BlobInfo()
        if method in ("Remove", "Restart", "CreateToken", "RotateToken") and service == "Jobs":
            request = pb.JobRequest(job_id="nobody")
        return self._connection.call(service, method, request, *args, **more)
