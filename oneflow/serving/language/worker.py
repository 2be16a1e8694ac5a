"""The worker of a model, on one rank or several: `python -m oneflow.serving.language.worker`.

Rank 0 connects to the server's socket, decides the work of each step and tells the others. It
ends with the connection: no worker outlives its server.
"""

from __future__ import annotations

import argparse
import queue
import socket
import threading
from pathlib import Path

from oneflow.comm import broadcast_object
from oneflow.core.log import get_logger
from oneflow.core.placement import Placement
from oneflow.distributed.world import world
from oneflow.kernels.array import Array
from oneflow.serving.language.engine import Engine, EngineSettings, Model, open_model
from oneflow.serving.language.messages import REPORTS, REQUESTS, Cancel, Request, Submit
from oneflow.serving.language.step import StepInputs, warm_up
from oneflow.serving.language.weights import Ranks

log = get_logger(__name__)

_IDLE_S = 1.0
"""Seconds between two messages to the other ranks while there is no work."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--socket", required=True)
    for name in EngineSettings.__dataclass_fields__:
        parser.add_argument(f"--{name}", type=int, default=getattr(EngineSettings, name))
    args = parser.parse_args()
    settings = EngineSettings(
        **{name: getattr(args, name) for name in EngineSettings.__dataclass_fields__}
    )
    size = world().world_size
    ranks = Ranks(Placement("cpu", list(range(size))) if size > 1 else None)
    model = open_model(args.folder, ranks, settings)
    warm_up(model.step, settings.budget, model.most_blocks)
    if world().rank == 0:
        _lead(model, settings, args.socket)
    else:
        _follow(model)


class _Ended:
    """The mark of a closed connection."""


Inbox = queue.SimpleQueue[Request | _Ended]


def _lead(model: Model, settings: EngineSettings, path: str) -> None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(path)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read, args=(line, inbox), daemon=True).start()
    has_others = world().world_size > 1

    def tell(arrays: list[Array] | None) -> None:
        """Send a step's inputs to the other ranks; an empty list: no work now; None: the end."""
        if has_others:
            broadcast_object(arrays, 0)

    def run(inputs: StepInputs) -> tuple[Array, Array]:
        tell(list(inputs))
        return model.step.run(inputs)

    engine = Engine(model, run, settings)
    try:
        line.sendall(REPORTS.encode(engine.opened()))
        while _take(inbox, engine):
            if engine.scheduler.is_idle:
                tell([])
                report = engine.report([])  # of blocks that cancelled sequences have left
            else:
                report = engine.step()
            line.sendall(REPORTS.encode(report))
    except BrokenPipeError:
        log.info("the server has gone")
    tell(None)


def _follow(model: Model) -> None:
    while (arrays := broadcast_object(None, 0)) is not None:
        if arrays:
            model.step.run(StepInputs(*arrays))


def _take(inbox: Inbox, engine: Engine) -> bool:
    """Take the requests that have come, or wait for one if there is no work; return whether the
    server is still connected."""
    try:
        message = inbox.get(timeout=_IDLE_S) if engine.scheduler.is_idle else inbox.get_nowait()
        while True:
            match message:
                case Submit():
                    engine.submit(message)
                case Cancel():
                    engine.scheduler.end(message.id)
                case _:
                    return False
            message = inbox.get_nowait()
    except queue.Empty:
        return True


def _read(line: socket.socket, inbox: Inbox) -> None:
    try:
        while (message := REQUESTS.receive(line)) is not None:
            inbox.put(message)
    except OSError as error:
        log.info("the connection to the server broke: %s", error)
    finally:
        inbox.put(_Ended())


if __name__ == "__main__":
    main()
