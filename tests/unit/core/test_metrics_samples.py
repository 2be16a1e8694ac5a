"""Numbers that ranks tell, and their way through a daemon."""

from __future__ import annotations

import random

import pytest

from oneflow.boxing.collectives.base import Collectives
from oneflow.boxing.collectives.device import DeviceCollectives
from oneflow.core.host_memory import host_capacity, own_memory
from oneflow.core.metrics import COLLECTIVES, Metrics
from oneflow.core.metrics_families import FAST_BUCKETS
from oneflow.core.metrics_samples import Aggregator, Exporter, Sample

from .test_metrics import samples


def worked(seed: int = 0) -> Metrics:
    """A rank that has done something of every kind."""
    rng, m = random.Random(seed), Metrics()
    for kind in ("segment", "boxing"):
        m.acts[kind] += rng.randint(1, 9)
        m.act_seconds[kind].observe(rng.random())
        m.wait_seconds[kind, "no_input"] += rng.random()
        m.wait_seconds[kind, "no_free_register"] += rng.random()
        m.actor_states[kind, "waiting_input"] = rng.randint(1, 5)
    m.registers["compute", "free"] = 3
    m.registers["transfer", "in_use"] = 0
    m.message_sent("shm", 8)
    m.messages_received["shm"] += rng.randint(10, 99)
    m.message_bytes["shm", "received"] += rng.randint(100, 999)
    m.message_latency_seconds["shm"].observe(3e-5)
    m.message_sent("tcp", 1000)
    m.collective("all_reduce", rng.randint(1, 4096), 0.001)
    m.set_device_memory("reserved", 700)
    m.set_device_memory("used", 400)
    m.pinned(4096)
    m.device_errors["launch"] += 1
    m.looked_up(64)
    m.step("Graph_0", 0.25, samples=32)
    m.nonfinite("Graph_0", "loss")
    m.saves["write"].observe(0.5)
    m.checkpoint_nbytes["write"] += 5000
    m.checkpoint_failures["DISK_FULL"] += 1
    return m


def test_a_daemon_shows_what_its_rank_has_counted() -> None:
    rank, daemon = worked(), Metrics()
    daemon.acts["segment"] += 100  # of the ranks before
    told = Exporter(rank).news()
    assert {t.name for t in told} == set(rank.told()) - {"mailbox_depth"}
    assert Aggregator(daemon, "j7").take(told) == 0
    here, there = samples(daemon), samples(rank)
    job, segment = ("job", "j7"), ("kind", "segment")
    acts = there["oneflow_actor_acts_total", (segment,)]
    assert here["oneflow_actor_acts_total", (segment,)] == 100 + acts
    assert here["oneflow_train_steps_total", (job,)] == 1
    assert here["oneflow_train_samples_total", (job,)] == 32
    assert here["oneflow_train_nonfinite_total", (job, ("where", "loss"))] == 1
    assert here["oneflow_device_memory_peak_bytes", ()] == 700
    same = [
        key
        for key in there
        if not key[0].startswith(("oneflow_train_", "oneflow_build", "oneflow_scheduler"))
        and key[0] not in ("oneflow_actor_acts_total", "oneflow_host_memory_bytes")
        and not (key[0] == "oneflow_device_memory_bytes" and key[1][0][1] in ("free", "limit"))
    ]
    assert len(same) > 140
    assert {key: here[key] for key in same} == {key: there[key] for key in same}
    pinned = ("oneflow_host_memory_bytes", (("kind", "pinned"),))
    assert here[pinned] == there[pinned] == 4096


def test_only_what_changed_is_told_again() -> None:
    rank, daemon = worked(), Metrics()
    teller, listener = Exporter(rank), Aggregator(daemon, "j")
    listener.take(teller.news())
    rank.acts["segment"] += 2
    rank.mailbox_depth.note(6)
    told = teller.news()
    always = {"host_memory", "device_memory_peak"}
    assert {t.name for t in told} - always == {"acts", "mailbox_depth"}
    listener.take(told)
    assert samples(daemon)["oneflow_mailbox_depth_max", ()] == 6
    assert {t.name for t in teller.news()} <= always
    assert samples(daemon)["oneflow_mailbox_depth_max", ()] == 0


def test_no_counter_goes_down_from_rank_to_rank() -> None:
    """Each attempt begins at zero; some end without a last word."""
    rng, daemon = random.Random(5), Metrics()
    before: dict[object, float] = {}
    for attempt in range(20):
        rank, listener = worked(attempt), Aggregator(daemon, f"j{attempt % 3}")
        teller = Exporter(rank)
        for _ in range(rng.randint(0, 3)):
            assert listener.take(teller.news()) == 0
            rank.acts["segment"] += rng.randint(0, 5)
            rank.step("Graph_0", rng.random(), 8)
        if rng.random() < 0.5:
            listener.ended()
        now = {
            key: value
            for key, value in samples(daemon).items()
            if key[0].endswith(("_total", "_bucket", "_count", "_sum"))
        }
        assert all(now[key] >= value for key, value in before.items())
        before = dict(now)
    assert len(before) > 150


def test_what_a_rank_held_is_gone_with_it() -> None:
    rank, daemon = worked(), Metrics()
    listener = Aggregator(daemon, "j")
    listener.take(Exporter(rank).news())
    listener.ended()
    assert not any(daemon.registers.values())
    assert not any(daemon.actor_states.values())
    assert not any(daemon.device_memory.values())
    assert not any(daemon.host_memory.values())
    assert daemon.device_memory_peak[()] == 700
    assert daemon.acts["segment"] == rank.acts["segment"]


@pytest.mark.parametrize(
    "told",
    [
        Sample("nothing_like_it", (), 1.0),
        Sample("acts", ("a kind",), 1.0),
        Sample("acts", ("x" * 65,), 1.0),
        Sample("acts", (), 1.0),
        Sample("acts", ("segment", "more"), 1.0),
        Sample("acts", ("segment",), -1.0),
        Sample("acts", ("segment",), float("nan")),
        Sample("acts", ("segment",), float("inf")),
        Sample("acts", ("segment",), 3.0),  # less than before
        Sample("wait_seconds", ("segment", "no_idea"), 1.0),
        Sample("registers", ("user", "free"), 1.0),
        Sample("checkpoint_failures", ("SOMETHING",), 1.0),
        Sample("act_seconds", ("segment",), 9.0, (5,)),  # of one bucket less than before
    ],
)
def test_nonsense_changes_nothing(told: Sample) -> None:
    daemon = Metrics()
    listener = Aggregator(daemon, "j")
    assert listener.take([Sample("acts", ("segment",), 7.0)]) == 0
    assert listener.take([Sample("act_seconds", ("segment",), 1.0, (6, 1))]) == 0
    before = samples(daemon)
    assert listener.take([told]) == 1
    after = samples(daemon)
    moving = "oneflow_host_memory_bytes", "oneflow_device_memory_bytes"
    assert {k: v for k, v in after.items() if k[0] not in moving} == {
        k: v for k, v in before.items() if k[0] not in moving
    }


def test_a_rank_cannot_make_endless_series() -> None:
    daemon = Metrics()
    told = [Sample("acts", (f"kind{i}",), 1.0) for i in range(1000)]
    told += [Sample("messages_sent", (f"line{i}",), 1.0) for i in range(1000)]
    told += [Sample("collective_bytes", (f"op{i}",), 1.0) for i in range(1000)]
    assert Aggregator(daemon, "j").take(told) == 3000
    assert not daemon.acts and not daemon.messages_sent and not daemon.collective_bytes


def test_what_is_counted_of_collectives_may_be_told() -> None:
    counted = {
        name
        for kind in (Collectives, DeviceCollectives)
        for name, method in vars(kind).items()
        if hasattr(method, "__wrapped__")
    }
    assert len(counted) > 5 and counted <= set(COLLECTIVES)


def test_more_buckets_than_there_are_do_no_harm() -> None:
    daemon = Metrics()
    told = Sample("act_seconds", ("segment",), 1.0, (1,) * 1000)
    assert Aggregator(daemon, "j").take([told]) == 0
    assert sum(daemon.act_seconds["segment"].counts) == len(FAST_BUCKETS) + 1


def test_memory_of_process_and_host() -> None:
    own, host = own_memory(), host_capacity()
    assert 0 <= own["shared"] <= own["rss"] < host["limit"]
    assert 0 < host["free"] <= host["limit"]
    assert host_capacity(1 << 20) == {"free": 1 << 20, "limit": 1 << 20}


def test_whatever_a_worker_says_a_page_can_be_read() -> None:
    """Random words and numbers, right ones among them: no error, few series, nothing shrinks."""
    rng, daemon = random.Random(11), Metrics()
    good = [(t.name, t.labels) for t in Exporter(worked()).news()]
    odd = ("", "segment", "no_input", "free", "\n", "ä", "x" * 99, "hit", "used", "IO")
    numbers = (0.0, 1.0, 3.5, -1.0, 1e18, 1e299, float("nan"), float("inf"))
    before: dict[object, float] = {}
    for _ in range(30):
        listener = Aggregator(daemon, rng.choice(("j1", "j2", "bad job\n")))
        for _ in range(200):
            name, labels = rng.choice(good)
            if rng.random() < 0.5:
                labels = tuple(rng.choice(odd) for _ in range(rng.randint(0, 3)))
            buckets = tuple(rng.randint(0, 1 << 60) for _ in range(rng.randint(0, 20)))
            told = Sample(name, labels, rng.choice(numbers), buckets)
            assert listener.take([told]) in (0, 1)
        if rng.random() < 0.5:
            listener.ended()
        found = samples(daemon)
        now = {k: v for k, v in found.items() if k[0].endswith(("_total", "_bucket", "_sum"))}
        assert all(now[key] >= value for key, value in before.items())
        assert len(found) <= 1500
        before = dict(now)
