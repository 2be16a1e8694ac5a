"""Another user's process at a scheduler's port: `impostor_program.py PORT UID MODE [MORE]`.

It prints "ready", then a line of JSON for each call: method, metadata, the first message. MODE:
invent: proves with random bytes.  replay: proves with the steps of an earlier proof (MORE: JSON
list of the fields, in hex).  relay: hands each byte on to the port MORE.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  for a name looked up as a user who may import nothing
import json
import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc

from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import proof_pb2
from oneflow.services.proof import PROVE

ATTACH = "/oneflow.Daemons/Attach"
PROGRAM = ["sh", "-c", "id > obeyed; cp obeyed {mark}"]


class Impostor(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, steps: list[proof_pb2.DoorStep]) -> None:
        self._steps = steps

    def service(self, details: Any) -> Any:
        method, metadata = details.method, dict(details.invocation_metadata)

        def answer(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
            say(method, metadata, next(messages, b""))
            if method == PROVE:
                for step in self._steps:
                    yield step.SerializeToString()
                    say(method, {}, next(messages, b""))
            elif method == ATTACH:
                seal = pb.SchedulerMessage.SerializeToString
                yield seal(pb.SchedulerMessage(welcome=pb.Welcome(epoch=1_000_000)))
                id_ = pb.AttemptId(job_id="mine", attempt=1)
                argv = [word.format(mark=os.environ["MARK"]) for word in PROGRAM]
                spec = pb.JobSpec(argv=argv, devices=1, device_type="cpu")
                prepare = pb.Prepare(id=id_, spec=spec, world_size=1, job_key="k" * 64)
                yield seal(pb.SchedulerMessage(prepare=prepare))
                for message in messages:
                    say(method, {}, message)
                    start = pb.Start(id=id_, master_addr="127.0.0.1", master_port=1)
                    yield seal(pb.SchedulerMessage(start=start))

        return grpc.stream_stream_rpc_method_handler(answer)


def say(method: str, metadata: dict[str, str], message: bytes) -> None:
    found = {"method": method, "metadata": str(metadata), "message": message.hex()}
    print(json.dumps(found), flush=True)


def relay(port: int, target: int) -> None:
    def copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    with socket.create_server(("127.0.0.1", port)) as server:
        print("ready", flush=True)
        while True:
            near, _ = server.accept()
            far = socket.create_connection(("127.0.0.1", target))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=copy, args=ends, daemon=True).start()


def main() -> None:
    port, uid, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    if uid != os.getuid():  # from here on nothing can be imported
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    if mode == "relay":
        relay(port, int(sys.argv[4]))
    elif mode == "replay":
        given = [{k: bytes.fromhex(v) for k, v in step.items()} for step in json.loads(sys.argv[4])]
    else:
        nonce, session = secrets.token_bytes(32), secrets.token_bytes(16)
        given = [{"nonce": nonce}, {"session": session, "proof": secrets.token_bytes(32)}]
    steps = [proof_pb2.DoorStep(**fields) for fields in given]
    server.add_generic_rpc_handlers((Impostor(steps),))
    assert server.add_insecure_port(f"127.0.0.1:{port}") == port
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
