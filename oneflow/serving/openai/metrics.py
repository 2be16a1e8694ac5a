"""Counters of a server of language models, as a Prometheus page."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from oneflow.serving.language.replicas import Replicas

_TIMES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters of a server; gauges of its replicas are read when a page is asked for."""

    def __init__(self, replicas: Replicas) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Workers(replicas))
        self.requests = Counter(
            "oneflow_serving_requests",
            "Requests that ended, by the status of their answers; 499: the client left",
            ("endpoint", "status"),
            registry=self.registry,
        )
        self.tokens = Counter(
            "oneflow_serving_tokens",
            "Tokens of prompts that were accepted, and tokens made for answers",
            ("kind",),
            registry=self.registry,
        )
        self.first_token = self._times("first_token", "From a request to its first token")
        self.interval = self._times("token_interval", "From one token of a sequence to the next")
        self.duration = self._times("request_duration", "From a request to the end of its answer")

    def _times(self, name: str, text: str) -> Histogram:
        full = f"oneflow_serving_{name}_seconds"
        return Histogram(full, text, buckets=_TIMES, registry=self.registry)

    def page(self) -> bytes:
        return generate_latest(self.registry)


class _Workers(Collector):
    """Gauges from the last report of each replica."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def collect(self) -> Iterator[Metric]:
        ready = self._replicas.ready
        last = [replica.last for replica in ready if replica.last is not None]
        yield _gauge(
            "replicas",
            "Worker processes",
            {"ready": len(ready), "starting": len(self._replicas.all) - len(ready)},
        )
        yield _gauge(
            "sequences",
            "Sequences that have blocks of the cache, and those that wait for them",
            {
                "running": sum(steps.running for steps in last),
                "waiting": sum(steps.waiting for steps in last),
            },
        )
        used = sum(steps.blocks_used for steps in last)
        total = sum(replica.opened.blocks for replica in ready if replica.opened)
        yield _gauge(
            "cache_blocks",
            "Blocks of the caches of keys and values",
            {"used": used, "free": total - used},
        )
        text = "Worker processes that ended and were started anew"
        yield CounterMetricFamily(
            "oneflow_serving_replicas_lost", text, value=self._replicas.num_lost
        )
        text = "Sequences that lost their blocks to older ones and were computed again"
        preempted = sum(steps.preempted for steps in last)
        yield GaugeMetricFamily("oneflow_serving_preempted", text, value=preempted)


def _gauge(name: str, text: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"oneflow_serving_{name}", text, labels=["state"])
    for state, value in values.items():
        family.add_metric([state], value)
    return family
