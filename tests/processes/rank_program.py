"""Runs on the ranks of test_rendezvous.py: a scheduler on rank 0, a client everywhere, one scene.

Usage: rank_program.py SCENE [FOLDER]. Prints its view; an uncaught error gives the exit code.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from oneflow.actors.control import ControlClient
from oneflow.core.config import Config
from oneflow.scheduler.server import SchedulerServer


def double(graph: bytes, config: bytes) -> bytes:
    if graph == b"bad":
        raise ValueError("node 3: no such op")
    return graph + config + graph


def pause(folder: Path, name: str) -> None:
    """Tells the test that this rank is there, and waits for it to go on."""
    (folder / f"{name}.here").touch()
    while not (folder / f"{name}.go").exists():
        time.sleep(0.01)


def hold_the_interpreter() -> None:
    """Sleeps without letting any other thread of this process run."""
    ctypes.PyDLL(None).sleep(600)


def play(scene: str, client: ControlClient, folder: Path) -> None:
    rank = client.rank
    match scene:
        case "work":
            client.put(f"address{rank}", b"%d" % rank)
            others = [client.get(f"address{r}") for r in range(client.world_size)]
            client.barrier("all")
            plan = client.compile("Net", b"digest", [1, 2], b"g" * 3_000_000, b"+")
            print(b",".join(others).decode(), len(plan), flush=True)
            client.barrier("end")
        case "differ":
            node = "relu" if rank != 1 else "gelu"
            text = f"%2 = {node}(%1)  # train.py:9"
            client.compile("Net", b"%d" % (rank == 1), [7, 8 + rank], b"g", describe=lambda i: text)
        case "compile error":
            client.compile("Net", b"d", [1], b"bad")
        case "early exit":
            if rank == 1:
                sys.exit(0)
            client.barrier("all", timeout_s=120)
        case "killed" | "killed0":
            pause(folder, str(rank))
            if rank == (0 if scene == "killed0" else 1):
                os.kill(os.getpid(), signal.SIGKILL)
            client.barrier("never", timeout_s=120)
        case "reported":
            if rank == 1:
                client.report_failure("ValueError: boom (train.py:3)", 7)
                time.sleep(600)
            client.barrier("never", timeout_s=120)
        case "frozen":
            pause(folder, str(rank))
            client.barrier("later", timeout_s=120)
        case "ctrl-c":
            pause(folder, str(rank))
            client.get("never", timeout_s=120)
        case "fork":
            context = multiprocessing.get_context("fork")
            with context.Pool(1) as pool:
                print(pool.map(abs, [-rank]), flush=True)
            client.barrier("end")
        case "exit 7":
            if rank == 1:
                client.report_failure("boom", 7)
                sys.exit(7)
            client.barrier("never", timeout_s=120)
        case "stuck":
            if rank == 1:
                hold_the_interpreter()
            client.barrier("never", timeout_s=120)
        case "join only" | "join at once":
            pass


def main() -> None:
    scene, folder = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else ".")
    config = Config.from_env()
    if scene == "join at once":
        pause(folder, str(config.rank))
    if config.rank == 0:
        server = SchedulerServer(config.master_address, config.world_size, double, config)
        server.start()
        atexit.register(server.stop)
    client = ControlClient(config.master_address, config.rank, config.world_size, config)
    client.join()
    atexit.register(client.leave)
    try:
        play(scene, client, folder)
    except Exception as error:
        client.report_failure(str(error), getattr(error, "exit_code", 1))
        raise


if __name__ == "__main__":
    main()
