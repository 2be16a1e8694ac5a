"""A scheduler as a test wants it: `python scheduler_program.py FOLDER [JSON]`.

FOLDER: state/ and runtime/ are in it. JSON: fields of SchedulerSettings, of its limits (limits)
and of the table's settings (table); compiler: true for one that needs no graph.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from oneflow.core.config import Config
from oneflow.core.errors import GraphError, OneFlowError
from oneflow.core.log import set_up
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
        time.sleep(float(text.partition("sleep=")[2] or 0) / 3)
    return f"{text} for {devices} {device_type} on {','.join(hosts)}".encode()


def main() -> int:
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}")
    limits, table = Limits(**options.pop("limits", {})), Settings(**options.pop("table", {}))
    compiler = compile_plan if options.pop("compiler", False) else None
    tls = TlsFiles.in_folder(Path(options.pop("tls"))) if "tls" in options else None
    settings = SchedulerSettings(
        state_dir=folder / "state",
        runtime_dir=folder / "runtime",
        limits=limits,
        table=table,
        tls=tls,
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
