"""A scheduler as a test wants it: `python scheduler_program.py FOLDER [JSON]`; its compiler:
`python scheduler_program.py --compile`.

FOLDER: state/ and runtime/ are in it. JSON: fields of SchedulerSettings, of its limits (limits)
of the table's settings (table) and of CompilerLimits (compiler_limits); compiler: true for one that
needs no graph.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

from oneflow.core.config import Config
from oneflow.core.errors import GraphError, OneFlowError
from oneflow.core.log import set_up
from oneflow.scheduler.cluster.compiler import CompilerLimits
from oneflow.scheduler.cluster.compiler_process import Work
from oneflow.scheduler.cluster.compiler_process import main as serve_compiler
from oneflow.scheduler.cluster.server import run_scheduler
from oneflow.scheduler.cluster.settings import Limits, SchedulerSettings, TlsFiles
from oneflow.scheduler.jobs.settings import Settings


def compile_plan(
    path: Path, devices: int, device_type: str, hosts: tuple[str, ...], progress: Any
) -> bytes:
    """A plan that says what it is made of."""
    text = path.read_text()
    if text.startswith("bad"):
        raise GraphError(text)
    for number in range(3):
        progress(f"pass{number}", number + 1, 3)
        _work(text)
    return f"{text} for {devices} {device_type} on {','.join(hosts)}".encode()


def _work(text: str) -> None:
    """A third of what the text says: seconds asleep, seconds in which nobody else has the
    interpreter, or memory without end.
    """
    what, _, number = text.partition(" ")[2].partition("=")
    if what == "sleep":
        time.sleep(float(number) / 3)
    elif what == "busy":
        libc = ctypes.PyDLL(None)  # keeps the interpreter's lock
        libc.usleep(round(float(number) * 1e6 / 3))
    elif what == "grow":
        blocks = []
        while True:
            blocks.append(bytearray(16 << 20))


def check_fit(path: Path, kind: str, devices: int, device_type: str, steps: int) -> int:
    if steps > 100:
        raise GraphError(f"{path}: no more than 100 steps")
    return 100


def main() -> int:
    if sys.argv[1] == "--compile":
        serve_compiler(lambda: Work(compile_plan, check_fit))
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}")
    limits, table = Limits(**options.pop("limits", {})), Settings(**options.pop("table", {}))
    limited = options.pop("compiler_limits", {})
    compiler = (sys.executable, __file__, "--compile") if options.pop("compiler", False) else ()
    tls = TlsFiles.in_folder(Path(options.pop("tls"))) if "tls" in options else None
    settings = SchedulerSettings(
        state_dir=folder / "state",
        runtime_dir=folder / "runtime",
        limits=limits,
        table=table,
        tls=tls,
        compiler=CompilerLimits(**limited),
        **options,
    )
    set_up(Config())
    try:
        return run_scheduler(settings, compiler, lambda found: print("ready", flush=True))
    except OneFlowError as error:
        print(f"oneflow: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
