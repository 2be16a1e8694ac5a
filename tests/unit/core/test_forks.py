"""gRPC's fork handlers, which cannot work beside a running loop, are off wherever we are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "first", ["oneflow", "oneflow.scheduler.cluster.tls", "oneflow.launcher.daemon.run"]
)
def test_fork_handlers_are_off_before_grpc_is_imported(first: str) -> None:
    env = {k: v for k, v in os.environ.items() if k != "GRPC_ENABLE_FORK_SUPPORT"}
    program = f"import {first}, os; print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])"
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "0\n", done.stderr
