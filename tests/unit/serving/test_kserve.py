"""The Open Inference Protocol over HTTP and gRPC, before a cluster that answers in this process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import GraphError
from oneflow.jobs.jobfile import load
from oneflow.protos import open_inference_pb2 as pb
from oneflow.protos.open_inference_pb2_grpc import (
    GRPCInferenceServiceStub,
    add_GRPCInferenceServiceServicer_to_server,
)
from oneflow.scheduler.jobs.records import JobState
from oneflow.serving.kserve import repository as repositories
from oneflow.serving.kserve.grpc_service import Inference
from oneflow.serving.kserve.http_app import HEADER, make_app
from oneflow.serving.kserve.repository import Repository
from oneflow.serving.kserve.service import Service
from oneflow.serving.limits import Limits
from tests.support.waiting import wait_until


class Rows(nn.Graph):
    """Outputs with a row for each row of the input."""

    def build(self, x: Any) -> Any:
        return {"twice": x * 2, "rounded": x.to(flow.int64)}


class Joined(nn.Graph):
    """An output of the whole batch: a request has exactly the example's rows."""

    def build(self, x: Any, y: Any) -> Any:
        return (x + y).sum()


class Job:
    """A job that computes as the graphs do, when it is let."""

    def __init__(self) -> None:
        self.id, self.is_over = "job", False
        self.calls: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def status(self) -> Any:
        return SimpleNamespace(state=JobState.RUNNING)

    def cancel(self) -> None:
        self.is_over = True

    def run(self, inputs: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        assert self.gate.wait(60)
        self.calls.append(len(next(iter(inputs.values()))))
        if "y" in inputs:
            return {"output": np.asarray((inputs["x"] + inputs["y"]).sum())}
        return {"twice": inputs["x"] * 2, "rounded": inputs["x"].astype(np.int64)}


class FakeCluster:
    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, path: Path, name: str) -> Job:
        self.jobs.append(Job())
        return self.jobs[-1]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    rows, joined, x = Rows(), Joined(), flow.ones(4, 3)
    with pytest.raises(GraphError, match=r"graph must be compiled first\."):
        flow.save(rows, folder / "x.job")
    rows(x)
    joined(x, y=x)
    for name, number, graph in (("rows", 1, rows), ("rows", 10, rows), ("joined", 1, joined)):
        place = folder / name / str(number)
        place.mkdir(parents=True)
        with pytest.warns(UserWarning, match="runs alone") if graph is joined else no_warning():
            flow.save(graph, place)
    return folder


def no_warning() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_a_graph_is_saved_with_the_last_call_as_its_example(root: Path) -> None:
    with load(root / "joined" / "1" / "model.job") as file:
        ports = [(p.name, p.dtype, p.shape) for p in file.description.inputs]
    assert ports == [("x", "float32", (4, 3)), ("y", "float32", (4, 3))]


@asynccontextmanager
async def served(
    root: Path, limits: Limits | None = None, key: str = ""
) -> AsyncIterator[SimpleNamespace]:
    cluster: Any = FakeCluster()
    models = Repository(root, cluster, 2, limits or Limits())
    await models.load_all()
    service = Service(models, key)
    server = grpc.aio.server()
    register: Any = add_GRPCInferenceServiceServicer_to_server
    register(Inference(service), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    transport = httpx.ASGITransport(make_app(service))
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://test") as http,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        stub: Any = GRPCInferenceServiceStub(channel)
        yield SimpleNamespace(models=models, cluster=cluster, http=http, stub=stub)
    await server.stop(0)
    await models.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))  # type: ignore[arg-type]


async def until(is_so: Callable[[], bool]) -> None:
    """Let others run until something is so."""
    await asyncio.to_thread(wait_until, is_so)


X = np.arange(15, dtype=np.float32).reshape(5, 3)


def as_json(x: np.ndarray, **more: Any) -> dict[str, Any]:
    one = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.tolist()}
    return {"inputs": [one], **more}


def test_health_metadata_and_index(root: Path) -> None:
    async def test() -> None:
        async with served(root) as s:
            assert (await s.http.get("/v2/health/live")).status_code == 200
            assert (await s.http.get("/v2/health/ready")).json() == {"ready": True}
            assert "binary_tensor_data" in (await s.http.get("/v2")).json()["extensions"]
            found = (await s.http.get("/v2/models/rows")).json()
            assert found["versions"] == ["1", "10"]
            assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
            assert [o["datatype"] for o in found["outputs"]] == ["FP32", "INT64"]
            exact = (await s.http.get("/v2/models/joined/versions/1")).json()
            assert [i["shape"] for i in exact["inputs"]] == [[4, 3], [4, 3]]
            for name, status in (("rows/versions/1", 200), ("rows/versions/2", 404), ("no", 404)):
                assert (await s.http.get(f"/v2/models/{name}/ready")).status_code == status
            same = await s.stub.ModelMetadata(pb.ModelMetadataRequest(name="rows"))
            assert list(same.versions) == ["1", "10"] and list(same.inputs[0].shape) == [-1, 3]
            assert (await s.stub.ServerReady(pb.ServerReadyRequest())).ready
            index = (await s.http.post("/v2/repository/index")).json()
            assert [(m["name"], m["version"], m["state"]) for m in index] == [
                ("joined", "1", "READY"),
                ("rows", "1", "READY"),
                ("rows", "10", "READY"),
            ]

    run(test)


def test_inference_in_json_and_in_binary(root: Path) -> None:
    async def test() -> None:
        async with served(root) as s:
            path = "/v2/models/rows/infer"
            answer = (await s.http.post(path, json=as_json(X, id="7"))).json()
            assert answer["id"] == "7" and answer["model_version"] == "10"
            by_name = {o["name"]: o for o in answer["outputs"]}
            assert by_name["twice"]["data"] == (X * 2).ravel().tolist()
            assert by_name["rounded"]["shape"] == [5, 3]
            one = {"name": "x", "datatype": "FP32", "shape": [5, 3]}
            one["parameters"] = {"binary_data_size": X.nbytes}
            asked = {"name": "twice", "parameters": {"binary_data": True}}
            head = json.dumps({"inputs": [one], "outputs": [asked]}).encode()
            found = await s.http.post(
                "/v2/models/rows/versions/1/infer",
                content=head + X.tobytes(),
                headers={HEADER: str(len(head))},
            )
            size = int(found.headers[HEADER])
            described = json.loads(found.content[:size])
            assert described["model_version"] == "1" and len(described["outputs"]) == 1
            np.testing.assert_array_equal(
                np.frombuffer(found.content[size:], np.float32).reshape(5, 3), X * 2
            )

    run(test)


def test_inference_over_grpc(root: Path) -> None:
    async def test() -> None:
        async with served(root) as s:
            raw = pb.ModelInferRequest(model_name="rows", id="9", raw_input_contents=[X.tobytes()])
            raw.inputs.add(name="x", datatype="FP32", shape=X.shape)
            typed = pb.ModelInferRequest(model_name="rows")
            typed.inputs.add(name="x", datatype="FP32", shape=X.shape)
            typed.inputs[0].contents.fp32_contents.extend(X.ravel())
            typed.outputs.add(name="twice")
            for request, count in ((raw, 2), (typed, 1)):
                answer = await s.stub.ModelInfer(request)
                assert len(answer.outputs) == count and answer.id == request.id
                found = np.frombuffer(answer.raw_output_contents[0], np.float32)
                np.testing.assert_array_equal(found.reshape(answer.outputs[0].shape), X * 2)

    run(test)


BAD: list[tuple[str, str, Any, int, str]] = [
    (
        "rows",
        "",
        as_json(X[:, :2]),
        400,
        r"x is FP32\[5, 2\]; the inputs are x: FP32\[-1, 3\]|input",
    ),
    ("rows", "", {"inputs": []}, 400, "missing input 'x'"),
    ("rows", "", as_json(X[:0]), 400, "one at least"),
    ("rows", "", as_json(X, outputs=[{"name": "z"}]), 400, "no output 'z'"),
    ("rows", "", {"inputs": [{"name": "x", "datatype": "FP33", "shape": [1]}]}, 400, "FP33"),
    ("rows", "", {"inputs": [{"name": "x", "datatype": "FP32", "shape": "a"}]}, 400, "shape"),
    ("rows", "", {"inputs": 3}, 400, "inputs is no list"),
    ("rows", "", [1], 400, "no JSON object"),
    ("rows", "3", as_json(X), 404, "no version '3'"),
    ("none", "", as_json(X), 404, "no model 'none'"),
    ("joined", "", as_json(X), 400, "missing input 'y'"),
]


def test_bad_requests_are_refused_with_their_reason(root: Path) -> None:
    async def test() -> None:
        async with served(root, Limits(body_nbytes=4096)) as s:
            for name, number, body, status, text in BAD:
                middle = f"/versions/{number}" if number else ""
                found = await s.http.post(f"/v2/models/{name}{middle}/infer", json=body)
                assert found.status_code == status, found.text
                assert any(t in found.json()["error"] for t in text.split("|")), found.text
            large = await s.http.post("/v2/models/rows/infer", content=bytes(5000))
            assert large.status_code == 413
            lost = await s.http.post("/v2/models/rows/infer", content=b"{}", headers={HEADER: "9"})
            assert lost.status_code == 400
            assert (await s.http.get("/v2/nothing")).status_code == 404
            request = pb.ModelInferRequest(model_name="rows", raw_input_contents=[b"", b""])
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await s.stub.ModelInfer(request)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            page = (await s.http.get("/metrics")).text
            assert 'requests_total{model="rows",protocol="http",status="400"}' in page

    run(test)


def test_full_queues_and_late_answers(root: Path) -> None:
    async def test() -> None:
        async with served(root, Limits(requests=2, timeout_s=60, drain_s=60)) as s:
            for job in s.cluster.jobs:
                job.gate.clear()
            path = "/v2/models/rows/infer"
            first = [asyncio.create_task(s.http.post(path, json=as_json(X))) for _ in range(2)]
            version = s.models.find("rows")
            await until(lambda: version.under_way == 2)
            assert version.busy == [1, 1]  # each replica has one
            assert (await s.http.post(path, json=as_json(X))).status_code == 429
            raw = pb.ModelInferRequest(model_name="rows", raw_input_contents=[X.tobytes()])
            raw.inputs.add(name="x", datatype="FP32", shape=X.shape)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await s.stub.ModelInfer(raw)
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            closing = asyncio.create_task(s.models.close())
            await until(lambda: s.models.is_draining)
            assert (await s.http.post(path, json=as_json(X))).status_code == 503
            assert (await s.http.get("/v2/health/ready")).status_code == 503
            assert not closing.done()
            for job in s.cluster.jobs:
                job.gate.set()
            assert [(await one).status_code for one in first] == [200, 200]
            await closing
            assert all(job.is_over for job in s.cluster.jobs)

    run(test)


def test_models_are_unloaded_and_loaded(root: Path) -> None:
    async def test() -> None:
        async with served(root) as s:
            await s.http.post("/v2/repository/models/rows/unload")
            assert (await s.http.get("/v2/models/rows/ready")).status_code == 503
            assert not (await s.stub.ModelReady(pb.ModelReadyRequest(name="rows"))).ready
            assert sum(job.is_over for job in s.cluster.jobs) == 4
            request = pb.RepositoryModelLoadRequest(model_name="rows")
            await s.stub.RepositoryModelLoad(request)
            assert (await s.http.post("/v2/models/rows/infer", json=as_json(X))).status_code == 200
            assert (await s.http.post("/v2/repository/models/no/load")).status_code == 404

    run(test)


def test_a_client_shows_the_key(root: Path) -> None:
    async def test() -> None:
        async with served(root, key="secret") as s:
            assert (await s.http.get("/v2/health/live")).status_code == 200
            assert (await s.http.get("/v2/models/rows")).status_code == 401
            shown = {"authorization": "Bearer secret"}
            assert (await s.http.get("/v2/models/rows", headers=shown)).status_code == 200
            request = pb.ModelMetadataRequest(name="rows")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await s.stub.ModelMetadata(request)
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
            await s.stub.ModelMetadata(request, metadata=tuple(shown.items()))

    run(test)


def test_rows_beyond_one_message_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repositories, "MAX_REQUEST_NBYTES", (64 << 10) + 24)
    job: Any = Job()
    found = repositories._ask(job, {"x": X}, 5, 60)
    np.testing.assert_array_equal(found["twice"], X * 2)
    assert job.calls == [2, 2, 1]
    with pytest.raises(repositories.Refusal, match="60 bytes; 24 fit") as error:
        repositories._ask(job, {"x": X}, 0, 60)
    assert error.value.status == 413
