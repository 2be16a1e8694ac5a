"""Checksums of a daemon's stream: no message with a wrong bit is taken for another one."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.sealing import opening, sealing

MESSAGES = [
    pb.SchedulerMessage(),
    pb.SchedulerMessage(ack=1, sequence=7),
    pb.SchedulerMessage(drain=True, drain_number=9, sequence=2),
    pb.SchedulerMessage(welcome=pb.Welcome(epoch=3, heartbeat_s=0.5), sequence=1),
    pb.DaemonMessage(beat=pb.DaemonBeat(number=4), epoch=3, sequence=5),
    pb.DaemonMessage(hello=pb.Hello(node="n1", pid=12), sequence=1),
    pb.DaemonMessage(leaving=pb.Empty(), epoch=3, sequence=300),
]


def sealed_bytes(message: Any) -> bytes:
    return sealing(type(message).SerializeToString)(message)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.WhichOneof("kind"))
def test_one_wrong_bit_is_noticed_or_changes_nothing(message: Any) -> None:
    """A bit of the checksum's own tag may hide it: the rest is as it was."""
    data = sealed_bytes(message)
    read = opening(type(message).FromString)
    assert read(data) == message
    for at in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[at // 8] ^= 1 << at % 8
        try:
            found = read(bytes(wrong))
        except DecodeError:
            continue
        found.DiscardUnknownFields()
        found.ClearField("checksum")
        assert found == message, f"bit {at}"


def test_who_knows_no_checksums_reads_and_is_read() -> None:
    for message in MESSAGES:
        plain = message.SerializeToString()
        assert opening(type(message).FromString)(plain) == message
        older = type(message).FromString(sealed_bytes(message))
        assert older.checksum == zlib.crc32(plain)
        older.ClearField("checksum")
        assert older == message


def test_what_looks_like_a_checksum_by_chance_has_to_be_sealed() -> None:
    message = pb.DaemonMessage(hello=pb.Hello(node="}abcd"))
    read = opening(pb.DaemonMessage.FromString)
    assert read(sealed_bytes(message)) == message
    with pytest.raises(DecodeError, match="that of other bytes"):
        read(message.SerializeToString())
