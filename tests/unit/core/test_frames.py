"""Messages over a stream: whole, bounded, in any pieces."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time

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


def test_a_message_that_is_too_long_for_its_reader_is_refused_before_it_is_read() -> None:
    left, right = socket.socketpair()
    left.sendall(struct.pack("<I", 101))
    receiver = Frames(right, pb.WorkerMessage, max_nbytes=100)
    with pytest.raises(ProtocolError, match="101 bytes is longer than 100"):
        receiver.receive()
    left.close()
    receiver.close()


def test_who_sends_byte_by_byte_passes_the_deadline_all_the_same() -> None:
    left, right = socket.socketpair()
    data = encode_frame(pb.WorkerMessage(progress=pb.Progress(checkpoint="x" * 60)))
    is_over = threading.Event()

    def trickle() -> None:
        for byte in data[:-1]:  # and never to the end, however late the receiver is
            left.sendall(bytes((byte,)))
            if is_over.wait(0.02):
                return

    thread = threading.Thread(target=trickle)
    thread.start()
    receiver = Frames(right, pb.WorkerMessage)
    with pytest.raises(TimeoutError):
        receiver.receive(time.monotonic() + 0.2)
    is_over.set()
    thread.join()
    left.close()
    receiver.close()


def test_a_message_in_time_is_received() -> None:
    left, right = socket.socketpair()
    sender, receiver = Frames(left, pb.WorkerCommand), Frames(right, pb.WorkerMessage)
    for message in messages():
        sender.send(message)
        assert receiver.receive(time.monotonic() + 60) == message
    sender.close()
    receiver.close()
