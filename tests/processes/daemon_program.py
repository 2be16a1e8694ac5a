"""Runs one daemon as its JSON argument says: the fields of DaemonSettings that are plain values."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from oneflow.launcher.daemon.daemon import Times
from oneflow.launcher.daemon.logs import Limits
from oneflow.launcher.daemon.run import main
from oneflow.launcher.daemon.settings import DaemonSettings, JobLimits


def client_credentials(folder: Path) -> Any:
    import grpc

    read = [(folder / name).read_bytes() for name in ("ca.crt", "client.key", "client.crt")]
    return grpc.ssl_channel_credentials(*read)


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
    if "tls" in given:
        given["credentials"] = client_credentials(Path(given.pop("tls")["folder"]))
    sys.exit(main(DaemonSettings(**given)))
