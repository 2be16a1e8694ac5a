"""Messages of a daemon's stream are counted, both ways: none is done twice, none is missed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from oneflow.core.control_channel import PROTOCOL
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.sealing import attach_call
from tests.support.cluster import SchedulerProcess
from tests.support.simulated.daemon_peer import Client, run
from tests.support.waiting import CALL_S, wait_until


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[SchedulerProcess]:
    found = SchedulerProcess(tmp_path, tick_s=0.1).start()
    yield found
    found.kill()


class Stream:
    """One that a test numbers itself."""

    def __init__(self, client: Client) -> None:
        self._stream = attach_call(client.channel)(metadata=client.metadata)
        self.heard: list[pb.SchedulerMessage] = []

    async def attach(self, sequence: int) -> int:
        """The epoch."""
        hello = pb.Hello(
            daemon="n1/cpu:0",
            node="n1",
            device_type="cpu",
            address="127.0.0.1",
            incarnation=7,
            protocol=PROTOCOL,
            version="test",
        )
        await self._stream.write(pb.DaemonMessage(hello=hello, sequence=sequence))
        return int((await self.read()).welcome.epoch)

    async def beat(self, epoch: int, number: int, sequence: int) -> None:
        beat = pb.DaemonBeat(number=number)
        await self._stream.write(pb.DaemonMessage(epoch=epoch, beat=beat, sequence=sequence))

    async def read(self) -> Any:
        message = await self._stream.read()
        self.heard.append(message)
        return message


def test_a_message_that_comes_again_is_not_done_again(scheduler: SchedulerProcess) -> None:
    async def scene() -> Stream:
        async with Client(scheduler, scheduler.token("daemon.token")) as client:
            stream = Stream(client)
            epoch = await stream.attach(1)
            for number, sequence in ((1, 2), (1, 2), (1, 2), (2, 3), (2, 3), (3, 4)):
                await stream.beat(epoch, number, sequence)
            while stream.heard[-1].ack != 3:
                await stream.read()
            return stream

    stream = run(scene())
    assert [m.ack for m in stream.heard if m.WhichOneof("kind") == "ack"] == [1, 2, 3]
    assert [m.sequence for m in stream.heard] == list(range(1, len(stream.heard) + 1))
    wait_until(lambda: 'messages_rejected_total{reason="duplicate"} 3.0' in scrape(scheduler))


@pytest.mark.parametrize("sequence", [4, 0])
def test_a_stream_of_which_a_message_is_missing_ends(
    scheduler: SchedulerProcess, sequence: int
) -> None:
    async def scene() -> None:
        async with Client(scheduler, scheduler.token("daemon.token")) as client:
            stream = Stream(client)
            epoch = await stream.attach(1)
            await stream.beat(epoch, 1, 2)
            await stream.beat(epoch, 2, sequence)
            with pytest.raises(grpc.RpcError, match="message 3 of a stream is missing") as ended:
                while True:
                    await stream.read()
            assert ended.value.code().name == "UNAVAILABLE"  # so that it comes again

    run(scene())


def scrape(scheduler: SchedulerProcess) -> str:
    import urllib.request

    url = f"http://{scheduler.known['metrics_address']}/metrics"
    with urllib.request.urlopen(url, timeout=CALL_S) as page:
        return str(page.read().decode())
