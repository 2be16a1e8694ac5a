"""One process of a real cluster: `python cluster_program.py scheduler|daemon JSON`, or a compiler
that needs no graphs: `python cluster_program.py --compile`.

JSON: fields of SchedulerSettings or DaemonSettings; their parts as objects. tls: a folder of
certificates. Of schedulers: compiler, a name of COMPILERS; has_env: is logging set up as the
environment says; fetch_fails: seed of calls of Fetch that break.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from oneflow.core.config import Config
from oneflow.core.errors import GraphError, OneFlowError
from oneflow.core.job_config import Overrides
from oneflow.core.log import set_up
from oneflow.launcher.daemon.daemon import Times
from oneflow.launcher.daemon.logs import Limits as LogLimits
from oneflow.launcher.daemon.run import main as run_daemon
from oneflow.launcher.daemon.settings import DaemonSettings, JobLimits
from oneflow.scheduler.cluster.compiler import CompilerLimits
from oneflow.scheduler.cluster.compiler_process import Work
from oneflow.scheduler.cluster.compiler_process import main as serve_compiler
from oneflow.scheduler.cluster.server import run_scheduler
from oneflow.scheduler.cluster.settings import Limits, SchedulerSettings, TlsFiles
from oneflow.scheduler.cluster.tls import channel_credentials
from oneflow.scheduler.jobs.settings import Settings

COMPILERS = {
    "": (),
    "toy": (sys.executable, __file__, "--compile"),
    "real": (sys.executable, "-m", "oneflow.jobs.compiling"),
}
PARTS = {"limits": Limits, "table": Settings, "compiler_limits": CompilerLimits}
DAEMON_PARTS = {"times": Times, "logs": LogLimits, "limits": JobLimits}


def break_fetch(seed: int) -> None:
    """The first call of Fetch and of the others every fourth fails: before its first chunk, after
    it, or when all is sent.
    """
    from oneflow.scheduler.cluster.daemons_service import DaemonsService
    from oneflow.scheduler.cluster.refusals import UnavailableError

    rng, real, calls = random.Random(seed), DaemonsService.Fetch, itertools.count()

    async def fetch(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
        fails = next(calls) == 0 or rng.random() < 0.25
        at = rng.choice((0, 1, 1 << 30)) if fails else -1
        number = 0
        async for chunk in real(self, request, context):
            if number == at:
                break
            number += 1
            yield chunk
        if fails:
            print(f"rig: a fetch fails after {number} chunks", flush=True)
            raise UnavailableError("the rig has lost it")

    DaemonsService.Fetch = fetch  # type: ignore[method-assign]


# ---- a compiler that needs no graph --------------------------------------------------------------


def compile_plan(
    path: Path,
    devices: int,
    device_type: str,
    hosts: tuple[str, ...],
    progress: Any,
    overrides: Overrides,
) -> bytes:
    """A plan that names its parts."""
    text = path.read_text()
    if text.startswith("bad"):
        raise GraphError(text)
    for number in range(3):
        progress(f"pass{number}", number + 1, 3)
        _work(text, number)
    return f"{text} for {devices} {device_type} on {','.join(hosts)}".encode()


def _work(text: str, number: int) -> None:
    """A third of the text's figure: seconds asleep, seconds in which nobody else has the
    interpreter, until a folder has a file of the third's number, or memory without end.
    """
    what, _, value = text.partition(" ")[2].partition("=")
    if what == "sleep":
        time.sleep(float(value) / 3)
    elif what == "busy":
        libc = ctypes.PyDLL(None)  # keeps the interpreter's lock
        libc.usleep(round(float(value) * 1e6 / 3))
    elif what == "until":
        while not Path(value, str(number)).exists():
            time.sleep(0.02)
    elif what == "grow":
        blocks = []
        while True:
            blocks.append(bytearray(16 << 20))


def check_fit(path: Path, kind: str, devices: int, device_type: str, steps: int) -> int:
    if steps > 100:
        raise GraphError(f"{path}: no more than 100 steps")
    return 100


# ---- processes -----------------------------------------------------------------------------------


def parts_of(given: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
    """Takes objects out of `given`."""
    return {name: kind(**given.pop(name)) for name, kind in kinds.items() if name in given}


def scheduler(given: dict[str, Any]) -> int:
    if "fetch_fails" in given:
        break_fetch(given.pop("fetch_fails"))
    compiler = COMPILERS[given.pop("compiler", "real")]
    set_up(Config.from_env() if given.pop("has_env", False) else Config())
    parts = parts_of(given, PARTS)
    if "compiler_limits" in parts:
        parts["compiler"] = parts.pop("compiler_limits")
    if "tls" in given:
        parts["tls"] = TlsFiles.in_folder(Path(given.pop("tls")))
    for name in ("state_dir", "runtime_dir", "token_file"):
        if name in given:
            parts[name] = Path(given.pop(name))
    settings = SchedulerSettings(**given, **parts)
    return run_scheduler(settings, compiler, lambda found: print("ready", flush=True))


def block_the_loop(signum: int, frame: object) -> None:
    """Blocks, as code that never gives the loop a turn would."""
    time.sleep(60)


def daemon(given: dict[str, Any]) -> int:
    signal.signal(signal.SIGHUP, block_the_loop)
    parts = parts_of(given, DAEMON_PARTS)
    if "tls" in given:
        folder = Path(given.pop("tls"))
        parts["credentials"] = partial(channel_credentials, folder, "daemon")
        parts["certificate"] = folder / "daemon.crt"
    for name in ("state_dir", "token_file"):
        if name in given:
            parts[name] = Path(given.pop(name))
    return run_daemon(DaemonSettings(**given, **parts))


def main() -> int:
    if sys.argv[1] == "--compile":
        serve_compiler(lambda: Work(compile_plan, check_fit))
        return 0
    run = scheduler if sys.argv[1] == "scheduler" else daemon
    try:
        return run(json.loads(sys.argv[2]))
    except OneFlowError as error:
        print(f"oneflow: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
