"""The parts that both protocols share: keys of clients, descriptions of models, counters."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from oneflow.serving.kserve.failures import Refusal
from oneflow.serving.kserve.repository import Repository, Version
from oneflow.serving.kserve.values import shape_of, type_name

EXTENSIONS = ["binary_tensor_data", "model_repository", "model_repository(unload_dependents)"]
PLATFORM = "oneflow_job"


class Service:
    """A repository that is served. key: the API key of its clients; "": they need none."""

    def __init__(self, repository: Repository, key: str = "") -> None:
        self.repository, self._key = repository, key
        self.metrics = Metrics(repository)

    def check_key(self, given: str) -> None:
        """Raise Refusal for a client that does not show the key."""
        given = given.removeprefix("Bearer ").strip()
        if self._key and not hmac.compare_digest(given.encode(), self._key.encode()):
            raise Refusal(401, "the API key is missing or wrong")

    def metadata(self, version: Version) -> dict[str, Any]:
        """Describe a version that was loaded."""
        interface = version.interface
        assert interface is not None  # it is ready
        ports = {"inputs": interface.inputs, "outputs": interface.outputs}
        return {
            "name": version.name,
            "versions": [v.number for v in self.repository.versions(version.name)],
            "platform": PLATFORM,
            **{
                kind: [
                    {
                        "name": port.name,
                        "datatype": type_name(port.dtype),
                        "shape": shape_of(port, interface),
                    }
                    for port in found
                ]
                for kind, found in ports.items()
            },
        }

    def index(self, wants_ready: bool = False) -> list[dict[str, str]]:
        """List all versions with their states."""
        self.repository.scan()
        return [
            {"name": v.name, "version": v.number, "state": v.state, "reason": v.reason}
            for v in self.repository.versions()
            if v.state == "READY" or not wants_ready
        ]


class Metrics:
    """Counters of the requests."""

    def __init__(self, repository: Repository) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Gauges(repository))
        self.requests = Counter(
            "oneflow_inference_requests",
            "Requests that ended, by model, protocol and the HTTP status of the answer",
            ("model", "protocol", "status"),
            registry=self.registry,
        )
        self.duration = Histogram(
            "oneflow_inference_duration_seconds",
            "From a request to its answer",
            ("model",),
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0),
            registry=self.registry,
        )
        self._repository = repository

    @contextmanager
    def measured(self, model: str, protocol: str) -> Iterator[None]:
        """Count a request by its outcome. Names of models that are not there count as one."""
        label = model if self._repository.versions(model) else ""
        status = "200"
        try:
            yield
        except Refusal as refusal:
            status = str(refusal.status)
            raise
        except BaseException:
            status = "500"
            raise
        finally:
            self.requests.labels(label, protocol, status).inc()

    def page(self) -> bytes:
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def collect(self) -> Iterator[Metric]:
        under_way = GaugeMetricFamily(
            "oneflow_inference_under_way", "Requests without an answer", labels=["model", "version"]
        )
        replicas = GaugeMetricFamily(
            "oneflow_inference_replicas", "Replicas that answer", labels=["model", "version"]
        )
        for version in self._repository.versions():
            labels = [version.name, version.number]
            under_way.add_metric(labels, version.under_way)
            replicas.add_metric(labels, len(version.jobs) if version.state == "READY" else 0)
        yield from (under_way, replicas)
