"""Runs one daemon as its JSON argument says: the fields of DaemonSettings that are plain values."""

from __future__ import annotations

import json
import signal
import sys
import time
from functools import partial
from pathlib import Path

from oneflow.launcher.daemon.daemon import Times
from oneflow.launcher.daemon.logs import Limits
from oneflow.launcher.daemon.run import main
from oneflow.launcher.daemon.settings import DaemonSettings, JobLimits
from oneflow.scheduler.cluster.tls import channel_credentials


def block_the_loop(signum: int, frame: object) -> None:
    """As code that never gives the loop a turn would."""
    time.sleep(60)


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, block_the_loop)
    given = json.loads(sys.argv[1])
    given["state_dir"] = Path(given["state_dir"])
    for name, kind in (("times", Times), ("logs", Limits), ("limits", JobLimits)):
        if name in given:
            given[name] = kind(**given[name])
    if "tls_dir" in given:
        folder = Path(given.pop("tls_dir"))
        given["credentials"] = partial(channel_credentials, folder, "daemon")
        given["certificate"] = folder / "daemon.crt"
    sys.exit(main(DaemonSettings(**given)))
