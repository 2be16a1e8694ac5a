"""Messages over a stream: whole, bounded, in any pieces."""

from __future__ import annotations

import random
import socket
import struct

import pytest

from oneflow.core.errors import ProtocolError
from oneflow.core.frames import MAX_FRAME_NBYTES, FrameDecoder, Frames, encode_frame
from oneflow.protos import cluster_pb2 as pb


def messages() -> list[pb.WorkerMessage]:
    made = [
        pb.WorkerMessage(progress=pb.Progress(step=i, metrics={"loss": i / 3})) for i in range(5)
    ]
    return [*made, pb.WorkerMessage(), pb.WorkerMessage(ready=pb.Empty())]


def test_a_socket_gives_the_messages_that_were_sent() -> None:
    left, right = socket.socketpair()
    sender, receiver = Frames(left, pb.WorkerCommand), Frames(right, pb.WorkerMessage)
    for message in messages():
        sender.send(message)
    sender.close()
    for message in messages():
        assert receiver.receive() == message
    assert receiver.receive() is None
    receiver.close()


def test_pieces_of_any_size_make_the_same_messages() -> None:
    data = b"".join(map(encode_frame, messages()))
    rng = random.Random(0)
    for _ in range(50):
        decoder, found, at = FrameDecoder(pb.WorkerMessage), [], 0
        while at < len(data):
            size = rng.randrange(1, 20)
            found += decoder.feed(data[at : at + size])
            at += size
        assert found == messages()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<I", MAX_FRAME_NBYTES + 1), "is longer than"),
        (struct.pack("<I", 3) + b"\xff\xff\xff", "are no WorkerMessage"),
        (struct.pack("<I", 9) + b"123", "in the middle of a message"),
        (b"\1\2", "in the middle of a message"),
    ],
)
def test_other_bytes_are_refused(data: bytes, message: str) -> None:
    left, right = socket.socketpair()
    left.sendall(data)
    left.close()
    receiver = Frames(right, pb.WorkerMessage)
    with pytest.raises(ProtocolError, match=message):
        receiver.receive()
    receiver.close()
    if "middle" not in message:
        with pytest.raises(ProtocolError, match=message):
            FrameDecoder(pb.WorkerMessage).feed(data)
