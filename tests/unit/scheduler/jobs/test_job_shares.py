"""Fair share: use that fades, and whose job is next."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from oneflow.scheduler.jobs.ledger import Ledger, keys_of
from oneflow.scheduler.jobs.queue import choose
from oneflow.scheduler.jobs.quotas import Queue, Queues, Quotas
from oneflow.scheduler.jobs.records import DaemonRecord, JobRecord, JobSpec, JobState, Use
from oneflow.scheduler.jobs.settings import Settings
from oneflow.scheduler.jobs.shares import ADVANCE_S, fair_order

from .table_rig import WALL, Rig

HOUR, DAY = 3600.0, 86_400.0
JOB = JobRecord("j", JobSpec(devices=2, queue="q"), owner="ada")
QUEUE, USER = ("cpu", "q"), ("cpu", "q", "ada")


def job(name: str, owner: str = "", queue: str = "", **spec: Any) -> JobRecord:
    return JobRecord(name, JobSpec(argv=("x",), queue=queue, **spec), owner=owner)


def ids(jobs: list[JobRecord]) -> list[str]:
    return [record.id for record in jobs]


# ---- use -----------------------------------------------------------------------------------------


def left_of(devices: int, ran_s: float, age_s: float, half_life_s: float) -> float:
    """Sum up in small steps the rest of a use that ended some time ago."""
    step_s = ran_s / 10_000
    ages = (age_s + (number + 0.5) * step_s for number in range(10_000))
    return sum(devices * step_s * 0.5 ** (age / half_life_s) for age in ages)


def test_use_fades_by_half_in_each_half_life() -> None:
    ledger = Ledger(HOUR)
    ledger.add(JOB, 2, now=100.0)
    assert ledger.used(USER, 100.0) == 0.0 and ledger.held(USER) == 2
    assert ledger.used(USER, 100.0 + HOUR) == pytest.approx(left_of(2, HOUR, 0, HOUR), rel=1e-6)
    ledger.add(JOB, -2, now=100.0 + HOUR)
    wanted = left_of(2, HOUR, 3 * HOUR, HOUR)
    assert ledger.used(USER, 100.0 + 4 * HOUR) == pytest.approx(wanted, rel=1e-6)
    assert ledger.used(QUEUE, 100.0 + 4 * HOUR) == pytest.approx(wanted, rel=1e-6)
    assert (ledger.held(USER), ledger.used(("cpu", "q", "bob"), 0.0)) == (0, 0.0)


def test_what_is_read_from_the_store_counts_as_if_it_had_been_seen() -> None:
    seen, read = Ledger(HOUR), Ledger(HOUR)
    seen.add(JOB, 2, now=0.0)
    seen.add(JOB, -2, now=600.0)
    use = Use("j", 0, 1, "ada", "", "cpu", 2, WALL, 600.0, "q")
    read.remember([use], now=1000.0, wall=WALL + 1000.0)
    read.remember([replace(use, queue="", owner="bob")], now=1000.0, wall=WALL + 1000.0)
    assert read.used(USER, 5000.0) == pytest.approx(seen.used(USER, 5000.0))
    assert read.used(("cpu", "default", "bob"), 5000.0) == pytest.approx(seen.used(USER, 5000.0))


def test_an_attempt_that_is_found_again_counts_from_its_start() -> None:
    seen, found = Ledger(HOUR), Ledger(HOUR)
    seen.add(JOB, 2, now=0.0)
    found.add(JOB, 2, now=700.0, before_s=700.0)
    assert found.used(USER, 900.0) == pytest.approx(seen.used(USER, 900.0))


# ---- the order -----------------------------------------------------------------------------------


def test_higher_priority_first_then_first_come() -> None:
    jobs = [job("a"), job("b", priority=2), job("c"), job("d", priority=2)]
    assert ids(fair_order(jobs, {}, Ledger(HOUR), 0.0)) == ["b", "d", "a", "c"]
    others = [job("a", "ada"), job("b", "ada"), job("c", "bob")]
    assert ids(fair_order(others, {}, Ledger(0.0), 0.0)) == ["a", "b", "c"], "no use is remembered"


def test_users_take_turns_by_weight_and_between_equals_the_first_comes_first() -> None:
    jobs = [job(f"{who}{number}", who) for who in "ab" for number in range(4)]
    equal = fair_order(jobs, {}, Ledger(HOUR), 0.0)
    assert ids(equal) == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"]
    queues = {"default": Queue(user_shares={"b": 2.0})}
    weighted = fair_order(jobs, queues, Ledger(HOUR), 0.0)
    assert ids(weighted) == ["a0", "b0", "b1", "a1", "b2", "b3", "a2", "a3"]


def test_who_used_less_for_its_share_is_first_and_so_is_its_queue() -> None:
    ledger, queues = Ledger(DAY), {"wide": Queue(share=4.0), "small": Queue()}
    for owner, queue, devices in (("a", "wide", 3), ("b", "wide", 1), ("c", "small", 2)):
        ledger.add(job("", owner, queue), devices, 0.0)
    jobs = [job("c", "c", "small"), job("a", "a", "wide"), job("b", "b", "wide")]
    assert ids(fair_order(jobs, queues, ledger, 10 * HOUR)) == ["b", "a", "c"]
    queues["small"] = Queue(share=4.0)
    assert ids(fair_order(jobs, queues, ledger, 10 * HOUR)) == ["c", "b", "a"]


def test_one_that_waits_to_go_on_is_before_those_that_never_began() -> None:
    ledger = Ledger(DAY)
    ledger.add(job("", "a"), 1, 0.0)
    jobs = [job("new", "b"), replace(job("old", "a"), state=JobState.RESTARTING)]
    assert ids(fair_order(jobs, {}, ledger, HOUR)) == ["old", "new"]


def test_types_of_devices_are_apart() -> None:
    ledger = Ledger(DAY)
    ledger.add(job("", "a", device_type="cuda"), 8, 0.0)
    jobs = [job("a", "a"), job("b", "b")]
    assert ids(fair_order(jobs, {}, ledger, HOUR)) == ["a", "b"]


# ---- a day ---------------------------------------------------------------------------------------


class Cluster:
    """Devices and users that always have jobs queued, in virtual time; the real choice, nothing
    else. seconds, sizes: of each user's jobs.
    """

    def __init__(
        self, seconds: dict[str, float], queues: Queues | None = None, sizes: Any = None
    ) -> None:
        self.seconds, self.queues, self.sizes = seconds, queues or {}, sizes or {}
        self.ledger = Ledger(6 * HOUR)
        self.devices = [DaemonRecord(f"n/cpu:{i}", "n", "cpu", i, "n", 1, 1) for i in range(6)]
        self.waiting: list[JobRecord] = []
        self.ends: list[tuple[float, int, JobRecord, int]] = []
        self.began: list[tuple[float, str]] = []
        self.used: Counter[str] = Counter()
        self.now, self._numbers = 0.0, itertools.count()

    def run_until(self, end: float) -> Counter[str]:
        """Device-seconds of each user from now on."""
        self.used.clear()
        while self.now < end:
            self._submit()
            self._start()
            self.now, _, done, number = heapq.heappop(self.ends)
            self.devices = [replace(d, job="") if d.job == done.id else d for d in self.devices]
            self.ledger.add(done, -number, self.now)
            self.used[done.owner] += number * self.seconds[done.owner]
        return self.used

    def _submit(self) -> None:
        for owner in self.seconds:
            for _ in range(6 - sum(record.owner == owner for record in self.waiting)):
                name, _, queue = owner.partition("@")
                spec = JobSpec(queue=queue, devices=self.sizes.get(owner, 1))
                self.waiting.append(JobRecord(f"{name}{next(self._numbers)}", spec, owner=owner))

    def _start(self) -> None:
        order = fair_order(self.waiting, self.queues, self.ledger, self.now)
        choice = choose(order, self.devices, frozenset(), Quotas(self.queues, self.ledger))
        for record in self.waiting:
            places = choice.starts.get(record.id, ())
            if not places:
                continue
            held = {place.daemon for place in places}
            self.devices = [replace(d, job=record.id) if d.id in held else d for d in self.devices]
            self.ledger.add(record, len(places), self.now)
            self.began.append((self.now, record.owner))
            at = self.now + self.seconds[record.owner]
            heapq.heappush(self.ends, (at, next(self._numbers), record, len(places)))
        self.waiting = [record for record in self.waiting if record.id not in choice.starts]


@pytest.mark.parametrize("seconds", [{"a": 600.0, "b": 600.0}, {"a": 300.0, "b": 1100.0}])
def test_users_with_weights_two_to_one_get_two_thirds_and_one_of_a_day(
    seconds: dict[str, float],
) -> None:
    cluster = Cluster(seconds, {"default": Queue(user_shares={"a": 2.0})})
    used = cluster.run_until(DAY)
    assert used["a"] / (6 * DAY) == pytest.approx(2 / 3, abs=0.01)
    assert used["b"] / (6 * DAY) == pytest.approx(1 / 3, abs=0.01)


def test_queues_share_by_weight_however_many_users_they_have() -> None:
    seconds = {"a@q": 600.0, "b@q": 600.0, "c@r": 600.0}
    cluster = Cluster(seconds, {"q": Queue(), "r": Queue(share=2.0)})
    used = cluster.run_until(DAY)
    assert used["c@r"] / (6 * DAY) == pytest.approx(2 / 3, abs=0.01)
    assert used["a@q"] / used["b@q"] == pytest.approx(1.0, abs=0.02)


def test_who_comes_late_is_next_and_in_the_end_all_have_the_same() -> None:
    cluster = Cluster({"a": 600.0, "b": 700.0})
    cluster.run_until(DAY)
    cluster.seconds["late"] = 600.0
    cluster.began.clear()
    cluster.run_until(DAY + HOUR)
    assert cluster.began[0][1] == "late"
    cluster.run_until(3 * DAY)
    used = cluster.run_until(4 * DAY)
    for owner in cluster.seconds:
        assert used[owner] / (6 * DAY) == pytest.approx(1 / 3, abs=0.02), owner


def test_a_job_of_all_devices_is_not_starved_by_small_ones() -> None:
    cluster = Cluster({"a": 600.0, "b": 600.0, "large": 600.0}, sizes={"large": 6})
    used = cluster.run_until(DAY)
    whole = sum(used.values())
    assert used["large"] / whole == pytest.approx(1 / 3, abs=0.05)
    assert whole > 0.8 * 6 * DAY, "devices idle only while they are kept for a large job"


# ---- in the table --------------------------------------------------------------------------------


def test_the_table_starts_the_job_of_who_used_less() -> None:
    rig = Rig(1, settings=Settings(usage_half_life_s=HOUR))
    rig.run("a0", owner="ada")
    rig.submit("a1", owner="ada")
    rig.submit("b0", owner="bob")
    rig.pass_time(5)
    rig.exit(0, 0, job_id="a0")
    assert list(rig.table.attempts.live) == ["b0"]


def test_use_before_a_restart_of_the_scheduler_counts() -> None:
    use = Use("j0", 0, 1, "ada", "", "cpu", 1, WALL - 300, 200.0)
    rig = Rig(1, settings=Settings(usage_half_life_s=HOUR), uses=[use])
    rig.run("busy", owner="eve")
    for name, owner in (("a", "ada"), ("b", "bob")):
        rig.submit(name, owner=owner)
    rig.exit(0, 0, job_id="busy")
    assert list(rig.table.attempts.live) == ["b"]


def test_a_device_that_is_held_counts_in_advance() -> None:
    ledger = Ledger(HOUR)
    ledger.add(job("", "a"), 1, 0.0)
    used = Use("j", 0, 1, "b", "", "cpu", 1, WALL - 100, ADVANCE_S / 2)
    ledger.remember([used], 0.0, WALL)
    jobs = [job("a", "a"), job("b", "b")]
    assert ids(fair_order(jobs, {}, ledger, 0.0)) == ["b", "a"]
    assert keys_of(jobs[0])[1] == ("cpu", "default", "a")
    assert math.isclose(ledger.used(("cpu", "default", "a"), 0.0), 0.0)
