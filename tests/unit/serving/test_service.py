"""The HTTP application without a worker: keys, readiness, draining, and the metrics it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from oneflow.core.errors import ConfigError
from oneflow.serving.language.chat import ChatTemplate
from oneflow.serving.language.replicas import Replicas
from oneflow.serving.language.tokenizer import Tokenizer
from oneflow.serving.limits import Limits
from oneflow.serving.openai.app import Service
from oneflow.serving.openai.metrics import Metrics
from oneflow.serving.openai.server import ServerSettings, serve

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


def test_the_docs_name_every_metric(tmp_path: Path) -> None:
    metrics = Metrics(Replicas(tmp_path, 1, 1, ()))
    exposed = set()
    for family in metrics.registry.collect():
        exposed.add(f"{family.name}_total" if family.type == "counter" else family.name)
    assert set(re.findall(r"\| `(oneflow_serving_\w+)` \|", DOCS.read_text())) == exposed


def test_other_machines_need_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give an API key"):
        serve(ServerSettings(tmp_path, "tiny", host="0.0.0.0"), print)
