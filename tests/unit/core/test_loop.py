"""The loop that all speak gRPC on, and forks of a process that has one."""

from __future__ import annotations

import subprocess
import sys

from tests.support.waiting import WAIT_S

FORKS = """
import gc, os
import grpc
from oneflow.core.loop import wait_for

async def speak():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    await channel.channel_ready()
    await channel.close()
    await server.stop(None)
    used = [server, channel]
    used.append(used)

gc.disable()
wait_for(speak(), 60.0)
child = os.fork()
if child == 0:
    gc.collect()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


def test_a_fork_leaves_garbage_of_grpc_to_its_parent() -> None:
    """It has no thread that polls for gRPC, and would wait for it as it collects."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.stdout == "7\n", done.stderr
