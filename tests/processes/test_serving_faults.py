"""`oneflow serve` under load and faults: many requests, workers that are killed, its own end."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.processes import usage
from tests.support.serving import Serving, serving
from tests.support.waiting import until, wait_until
from tests.unit.serving.models import write_model

REQUESTS = 10_000
READY = 'oneflow_serving_replicas{state="ready"}'

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("models") / "tiny"
    write_model(found, eos_token_id=None)
    (found / "generation_config.json").write_text("{}")
    yield found


def client_of(server: Serving) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0)


async def ask(client: openai.AsyncOpenAI, prompt: list[int], limit: int) -> str:
    found = await client.completions.create(
        model="tiny", prompt=prompt, max_tokens=limit, temperature=0
    )
    assert found.usage is not None and found.usage.completion_tokens == limit
    return found.choices[0].text


async def begin(client: openai.AsyncOpenAI, limit: int) -> Any:
    """A stream that gave its first token."""
    stream = await client.completions.create(
        model="tiny", prompt=[9, 8, 7], max_tokens=limit, stream=True, temperature=0, logprobs=0
    )
    await anext(aiter(stream))
    return stream


async def rest(stream: Any) -> str:
    """Read a stream to its end; return its finish reason, or "lost"."""
    end = ""
    try:
        async for chunk in stream:
            end = chunk.choices[0].finish_reason or end
    except openai.APIError:
        return "lost"
    return end


def test_a_killed_replica_takes_only_what_it_had_begun(folder: Path) -> None:
    async def scene(server: Serving) -> None:
        async with client_of(server) as client:
            wait_until(lambda: server.metrics()[READY] == 2, "both replicas are ready")
            streams = await asyncio.gather(*(begin(client, 230) for _ in range(8)))
            waiting = [asyncio.create_task(ask(client, [5, i], 200)) for i in range(40, 60)]
            os.kill(server.workers()[0], signal.SIGKILL)
            ends = [await rest(stream) for stream in streams]
            assert set(ends) == {"lost", "length"}
            assert ends.count("lost") <= 4  # half of them were at the other replica
            # Requests without a stream are whole, whichever worker they were at.
            alone = [await ask(client, [5, i], 200) for i in range(40, 60)]
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            for answer, wanted in zip(answers, alone, strict=True):
                assert isinstance(answer, openai.APIStatusError) or answer == wanted
            assert len([a for a in answers if isinstance(a, str)]) >= 10
            await until(lambda: server.metrics()[READY] == 2)
            assert server.metrics()["oneflow_serving_replicas_lost_total"] == 1
            await until(server.is_empty)

    with serving(folder, "--replicas", "2", "--step-tokens", "32") as server:
        asyncio.run(scene(server))


def test_two_ranks_give_the_tokens_of_one_and_end_together(folder: Path) -> None:
    prompts = [list(range(5, 5 + n)) for n in (3, 40, 90, 17)]

    async def all_of(server: Serving) -> list[str]:
        async with client_of(server) as client:
            return await asyncio.gather(*(ask(client, prompt, 30) for prompt in prompts))

    async def kill_one(server: Serving) -> None:
        async with client_of(server) as client:
            stream = await begin(client, 230)
            os.kill(server.workers()[-1], signal.SIGKILL)
            assert await rest(stream) == "lost"
            await until(lambda: server.metrics()[READY] == 1)
            assert await ask(client, prompts[0], 30)

    with serving(folder, "--step-tokens", "32") as server:
        wanted = asyncio.run(all_of(server))
    with serving(folder, "--step-tokens", "32", "--tensor-parallel", "2") as server:
        assert len(server.workers()) == 2
        assert asyncio.run(all_of(server)) == wanted
        asyncio.run(kill_one(server))


def test_a_server_that_is_told_to_end_lets_answers_end(folder: Path) -> None:
    async def scene(server: Serving) -> None:
        async with client_of(server) as client:
            stream = await begin(client, 230)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.InternalServerError, match="shutting down"):
                for _ in range(1000):  # the signal is taken at the next turn of the loop
                    await ask(client, [5], 1)
            assert await rest(stream) == "length"

    with serving(folder, "--step-tokens", "32") as server:
        asyncio.run(scene(server))
        assert server.process.wait(60) == 0


def test_many_requests_leave_nothing_behind(folder: Path) -> None:
    """Requests of 32 clients, a tenth of which are left half-way, over a cache that is too small
    for all: memory stays, and no block is lost."""

    async def one(client: openai.AsyncOpenAI, rng: random.Random) -> None:
        prompt = [rng.randrange(5, 250) for _ in range(rng.randint(1, 40))]
        if rng.random() < 0.1:
            stream = await begin(client, 60)
            await stream.close()
        else:
            await ask(client, prompt, rng.randint(1, 12))

    async def many(server: Serving, count: int) -> None:
        numbers = iter(range(count))
        async with client_of(server) as client:

            async def go_on() -> None:
                for number in numbers:
                    await one(client, random.Random(number))

            await asyncio.gather(*(go_on() for _ in range(32)))
            await until(server.is_empty)

    flags = ("--cache-tokens", "512", "--step-tokens", "64")
    with serving(folder, *flags) as server:
        asyncio.run(many(server, REQUESTS // 10))
        processes = [server.process.pid, *server.workers()]
        before = [usage(pid) for pid in processes]
        asyncio.run(many(server, REQUESTS - REQUESTS // 10))
        after = [usage(pid) for pid in processes]
        assert [u.fds for u in after] == [u.fds for u in before]
        for old, new in zip(before, after, strict=True):
            assert new.nbytes - old.nbytes < 48 << 20
        assert server.metrics()["oneflow_serving_preempted"] > 0
