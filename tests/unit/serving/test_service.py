"""The HTTP application without a worker: keys, readiness, draining, and the metrics it has."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from oneflow.core.errors import ConfigError
from oneflow.serving.language.chat import ChatTemplate
from oneflow.serving.language.messages import Cancel, Made, Submit
from oneflow.serving.language.replicas import NoFirstTokenError, Replicas
from oneflow.serving.language.tokenizer import Tokenizer
from oneflow.serving.limits import Limits
from oneflow.serving.openai.app import Service
from oneflow.serving.openai.metrics import Metrics
from oneflow.serving.openai.server import ServerSettings, serve
from oneflow.serving.openai.waiting import FirstTokens

from .models import write_tokenizer

KEY = "a-key-of-sixteen-letters"
DOCS = Path(__file__).resolve().parents[3] / "docs" / "SERVING.md"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    folder = tmp_path_factory.mktemp("service")
    write_tokenizer(folder)
    replicas = Replicas(folder, 1, 1, ())
    return Service("tiny", replicas, Tokenizer(folder), ChatTemplate(folder), Limits(), KEY)


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(service.app()) as found:
        yield found


def test_clients_without_the_key_are_refused(client: TestClient) -> None:
    for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY[:-1]}):
        answer = client.get("/v1/models", headers=given)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    assert client.get("/v1/models", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
    assert client.get("/metrics").status_code == 200


def test_a_server_without_workers_or_that_ends_says_503(
    client: TestClient, service: Service
) -> None:
    asked = {"model": "tiny", "prompt": "a"}
    headers = {"Authorization": f"Bearer {KEY}"}
    codes = []
    for is_draining in (False, True):
        service.is_draining = is_draining
        answer = client.post("/v1/completions", json=asked, headers=headers)
        assert answer.status_code == client.get("/health").status_code == 503
        assert int(answer.headers["Retry-After"]) > 0
        codes.append(answer.json()["error"]["code"])
    service.is_draining = False
    assert codes == ["not_ready", "draining"]
    assert service.sequences == 0


def test_a_wait_is_foretold_by_the_pace_of_first_tokens() -> None:
    firsts = FirstTokens()
    for _ in range(8):
        firsts.arrive(10.0)
    assert firsts.expected_s == 0.0  # nothing is known
    for number in range(1, 6):
        firsts.serve(10.0 + 2.0 * number)  # one each two seconds
    firsts.leave()
    assert firsts.waiting == 2 and firsts.expected_s == pytest.approx(2 * 2.0)
    firsts.leave()
    firsts.leave()
    firsts.arrive(500.0)  # time in which nobody waits says nothing
    assert firsts.expected_s == pytest.approx(2.0)
    for time_s in np.cumsum([0.5] * 300) + 500.0:
        firsts.serve(time_s)
        firsts.arrive(time_s)
    assert firsts.expected_s == pytest.approx(0.5, rel=0.02)


def test_requests_that_would_wait_too_long_are_refused_at_once(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replicas, "ready", property(lambda self: [None]))
    monkeypatch.setattr(service, "opened", object())
    monkeypatch.setattr(service, "firsts", firsts := FirstTokens())
    for _ in range(26):
        firsts.arrive(0.0)
    for number in range(1, 6):
        firsts.serve(3.5 * number)
    asked = {"model": "tiny", "prompt": "a"}
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = client.post("/v1/completions", json=asked, headers=headers)
    assert answer.status_code == 429 and answer.json()["error"]["code"] == "queue_full"
    assert "about 74 s; the limit is 60 s" in answer.json()["error"]["message"]  # 21 times 3.5 s
    assert answer.headers["Retry-After"] == "14"
    assert service.sequences == 0


def test_a_sequence_without_a_token_in_time_is_ended(tmp_path: Path) -> None:
    sent: list[Any] = []
    replica: Any = SimpleNamespace(inboxes={}, send=sent.append)
    replicas = Replicas(tmp_path, 1, 1, ())

    async def ask(tokens: int) -> int:
        """Return how many messages came, the last of them when the time for the first is over."""
        now, count, late = asyncio.get_running_loop().time(), 0, asyncio.Event()
        first_s = 0.5 if tokens else 0.05
        submit = Submit(0, [1], 9, [], 0.0, 1.0, 0)
        asked = replicas._ask(replica, submit, now + 60, now + first_s)
        told = asyncio.create_task(anext(asked))
        asyncio.get_running_loop().call_at(now + first_s + 0.1, late.set)
        while not replica.inboxes:
            await asyncio.sleep(0)
        (inbox,) = replica.inboxes.values()
        for end in ["", "stop"][: 2 * tokens]:
            inbox.put_nowait(Made(0, [], end))
            await told
            await late.wait()
            count, told = count + 1, asyncio.create_task(anext(asked, None))
        await told
        await asked.aclose()
        return count

    with pytest.raises(NoFirstTokenError):
        asyncio.run(ask(0))
    assert isinstance(sent[-1], Cancel) and not replica.inboxes
    assert asyncio.run(ask(1)) == 2


def test_the_docs_name_every_metric(tmp_path: Path) -> None:
    metrics = Metrics(Replicas(tmp_path, 1, 1, ()))
    exposed = set()
    for family in metrics.registry.collect():
        exposed.add(f"{family.name}_total" if family.type == "counter" else family.name)
    assert set(re.findall(r"\| `(oneflow_serving_\w+)` \|", DOCS.read_text())) == exposed


def test_other_machines_need_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give an API key"):
        serve(ServerSettings(tmp_path, "tiny", host="0.0.0.0"), print)
