"""A whole cluster in one process, in virtual time, with everything going wrong, under a seed.

`python -m tests.faults.simulation --seeds 10000` runs many seeds; `--start 4711 --seeds 1 -v` runs
one again and prints its events. After the faults stop everything must come to rest: every job
in one final state, nothing running twice, the store the same as the table, and the next job runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from oneflow.core.errors import JobSpecError
from oneflow.scheduler.jobs.events import (
    CancelAsked,
    ChangeAsked,
    DrainAsked,
    RemoveAsked,
    RestartAsked,
    Submitted,
    TellPrepare,
    UndrainAsked,
)
from oneflow.scheduler.jobs.limits import parse_folder_name
from oneflow.scheduler.jobs.quotas import Queue, check_queue
from oneflow.scheduler.jobs.records import DaemonState, JobRecord, JobSpec, JobState
from oneflow.scheduler.jobs.settings import Settings
from oneflow.scheduler.jobs.table import Table
from tests.support.simulated.daemon import Daemon, Program, Training
from tests.support.simulated.network import Quality, Violation, World
from tests.support.simulated.scheduler import MemoryStore, SimulatedScheduler

FAULTS_END_S = 60.0
REST_S = 900.0
DETECTION_S = 25.0  # silence, reconnection with jitter, and a lost message or two
CLIENT_RETRY_S = 1.5


NODES = ("n0", "n1", "n2")

Submission = tuple[str, tuple[str, ...]]  # id and command: jobs of one id have different ones
Run = tuple[str, int, int]  # id, life, attempt
Place = tuple[str, ...]  # command and daemons: after a restore two runs may be called the same


@dataclass
class Outcome:
    """Sights of a run; `error` is "" if nothing was wrong."""

    seed: int
    error: str = ""
    trace: list[str] = field(default_factory=list)
    steps: int = 0
    jobs: int = 0
    restarts: int = 0
    later_lives: int = 0  # jobs that took the id of one that had been removed, and succeeded
    preempted: int = 0  # attempts that were stopped for a job of higher priority
    crashes: int = 0
    restores: int = 0  # of the scheduler's state, from an older copy
    states: Counter[str] = field(default_factory=Counter)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = world = World(seed)
        rng = world.rng
        self.quality = self._choose_quality()
        self.settings = Settings(
            prepare_s=rng.choice((30.0, 60.0)),
            grace_s=rng.choice((2.0, 10.0)),
            unkillable_s=rng.choice((5.0, 20.0)),
            early_exit_s=rng.choice((5.0, 10.0)),
            grow_s=rng.choice((0.0, 2.0, 10.0)),
            fast_daemons=2 if seed % 4 == 3 else 200,
            queues={"q": self._choose_queue()},
        )
        self.store = MemoryStore()
        self.scheduler = SimulatedScheduler(world, self.store, self.settings)
        self.programs: dict[Submission, Program] = {}
        self.trainings: dict[tuple[Run, Place], Training] = {}
        self.acknowledged: set[Submission] = set()
        self.removed: set[Submission] = set()
        self.undrained: set[str] = set()
        self.num_devices = 0
        self.is_faulty = True
        self.restores = 0
        self.daemons = self._make_daemons()
        self._plan_clients()
        self._plan_faults()

    def _choose_quality(self) -> Quality:
        rng = self.world.rng
        if rng.random() < 0.6:
            return Quality(True, rng.choice((0.002, 0.05, 0.3)))
        loss, duplication = rng.choice((0.01, 0.1)), rng.choice((0.01, 0.2))
        return Quality(False, rng.choice((0.01, 0.2)), loss, duplication)

    def _choose_queue(self) -> Queue:
        rng = self.world.rng
        devices, user_devices = rng.randint(2, 4), rng.choice((0, 0, 2))
        is_preemptible = rng.random() < 0.5
        return Queue(devices, user_devices, share=2.0, preemptible=is_preemptible)

    def _make_daemons(self) -> list[Daemon]:
        rng = self.world.rng
        self.num_devices = rng.randint(3, 8)
        num_nodes = rng.randint(1, 3)
        daemons = []
        for number in range(self.num_devices):
            node, index = NODES[number % num_nodes], number // num_nodes
            name = f"{node}/cpu:{index}"
            daemons.append(
                Daemon(
                    self.world, name, node, index, self.scheduler, self.quality, self._training_of
                )
            )
        return daemons

    # -- jobs --------------------------------------------------------------------------------------

    def _training_of(self, message: TellPrepare) -> Training:
        record = message.record
        key = _run_of(record)
        if key not in self.trainings:
            program = self.programs[record.id, record.spec.argv]
            training = Training(self.world, record, program)
            training.on_step = self._stepped
            self.trainings[key] = training
        return self.trainings[key]

    def _stepped(self, training: Training) -> None:
        """Two attempts of one job may step at a time only until the old one can be found out."""
        now, job = self.world.now, training.job_id
        training.first_step_at = training.first_step_at or now
        begun = [other for other in self.trainings.values() if other.job_id == job]
        later = begun[begun.index(training) + 1 :]  # after a restore lives do not tell the order
        newer = [other.first_step_at for other in later if other.first_step_at]
        if not newer:
            return
        fine = [daemon.fine_since for daemon, _ in training.ranks.values()]
        reachable = [d for d, _ in training.ranks.values() if not d.is_frozen and not d.line.is_cut]
        if not reachable or self.scheduler.is_frozen or not self.scheduler.is_up:
            return
        since = max(*newer, *fine, self.scheduler.fine_since)
        if now - since > DETECTION_S:
            raise Violation(f"attempt {training.attempt} of {job} runs beside a newer one")

    def _make_program(self, devices: int) -> Program:
        rng = self.world.rng
        program = Program(
            steps=rng.randint(2, 40),
            step_s=rng.choice((0.1, 0.5, 2.0)),
            checkpoint_every=rng.choice((0, 3, 5)),
            stop_s=rng.choice((0.2, 3.0, 30.0)),
            exits_zero_when_stopped=rng.random() < 0.1,
            is_endless=rng.random() < 0.05,
            is_unkillable=rng.random() < 0.05,
        )
        for attempt in range(1, 6):
            if rng.random() < 0.3:
                code, reason = rng.choice(
                    ((3, "USER_ERROR"), (137, "OOM_HOST"), (-11, "SIGNAL"), (82, "NONFINITE"))
                )
                step = rng.randint(1, 30)
                program.failures[attempt] = (step, rng.randrange(devices), code, reason)
        if rng.random() < 0.1:
            program.early_exit_rank = rng.randrange(devices)
        if rng.random() < 0.1:
            program.prepare_error, program.prepare_hang = 0.3, 0.1
        return program

    # -- clients -----------------------------------------------------------------------------------

    def _plan_clients(self) -> None:
        rng = self.world.rng
        at_once = rng.choice((0, 1, 2))
        for number in range(rng.randint(3, 14)):
            job_id = f"j{number}"
            devices = rng.choice((1, 1, 2, 2, 3, self.num_devices, self.num_devices + 2))
            is_elastic = rng.random() < 0.3
            spec = JobSpec(
                name=job_id,
                argv=("train",),
                devices=devices,
                max_devices=devices + rng.randint(1, 3) if is_elastic else 0,
                nodes=2 if devices == 2 and rng.random() < 0.2 else 0,
                priority=rng.randint(-1, 1),
                max_restarts=rng.choice((0, 1, 4)),
                restart_on=rng.choice(((), (), ("NODE_LOST", "3"), ("OOM_HOST",))),
                time_limit_s=rng.choice((0.0, 0.0, 0.0, 15.0)),
                after=self._some_before(number),
                preemptible=rng.random() < 0.3,
            )
            if devices <= 2:
                spec = replace(spec, **self._some_nodes())
            spec = self._in_queue(spec)
            if rng.random() < 0.3:
                spec = replace(spec, array="a", array_index=number, array_limit=at_once)
            self.programs[job_id, spec.argv] = self._make_program(devices)
            at = rng.uniform(0, FAULTS_END_S * 0.8)
            self.world.after(at, lambda s=spec: self._submit(s))  # type: ignore[misc]
            if rng.random() < 0.25:
                late = at + rng.uniform(0, 30)
                self.world.after(late, lambda j=job_id: self._cancel(j))  # type: ignore[misc]
            if rng.random() < 0.15:
                self._ask_later(at + rng.uniform(5, 60), RestartAsked(job_id, "user", 0.0))
            if rng.random() < 0.2:
                self._ask_later(at + rng.uniform(0, 30), ChangeAsked(job_id, is_held=True))
                late = at + rng.uniform(30, 60)
                self.world.after(late, lambda j=job_id: self._release(j))  # type: ignore[misc]
            if rng.random() < 0.3:
                late = at + rng.uniform(5, 60)
                self.world.after(late, lambda s=spec: self._remove(s))  # type: ignore[misc]

    def _some_nodes(self) -> dict[str, Any]:
        """Choose a node to run on or not to run on, or none."""
        rng = self.world.rng
        node = rng.choice([daemon.node for daemon in self.daemons])
        chosen = {rng.choice(("only_nodes", "exclude_nodes")): (node,)}
        return chosen if rng.random() < 0.2 else {}

    def _in_queue(self, spec: JobSpec) -> JobSpec:
        """Put a job into the queue or not, but into none that could never run it."""
        in_queue = replace(spec, queue="q")
        with suppress(JobSpecError):
            check_queue(in_queue, self.settings.queues)
            return self.world.rng.choice((spec, in_queue))
        return spec

    def _some_before(self, number: int) -> str:
        """Name none, or one or two of the jobs before this one."""
        rng = self.world.rng
        if not number or rng.random() > 0.2:
            return ""
        chosen = rng.sample(range(number), min(number, rng.choice((1, 1, 2))))
        return ",".join(f"j{before}{rng.choice(('', ':any'))}" for before in chosen)

    def _submit(self, spec: JobSpec) -> None:
        """Until it is acknowledged; sometimes once more, as a client does that heard nothing."""
        submission = spec.name, spec.argv
        key = f"key-of-{spec.name}-{spec.argv}"
        owner = "ada" if spec.name[-1] in "02468" else "bob"
        event = Submitted(spec.name, spec, owner, key, self.world.wall)
        if submission in self.removed:
            return
        if self.scheduler.step(event):
            self.acknowledged.add(submission)
            if self.world.chance(0.8):
                return
        if self.world.now < FAULTS_END_S * 2 and submission not in self.removed:
            self.world.after(CLIENT_RETRY_S, lambda: self._submit(spec))

    def _cancel(self, job_id: str) -> None:
        if not self.scheduler.step(CancelAsked(job_id, "user", self.world.wall)):
            known = self.scheduler.is_up and job_id in self.scheduler.table.jobs
            if known or self.world.now < FAULTS_END_S:
                self.world.after(CLIENT_RETRY_S, lambda: self._cancel(job_id))

    def _release(self, job_id: str) -> None:
        if not self.scheduler.step(ChangeAsked(job_id, is_held=False, priority=1)):
            known = self.scheduler.is_up and job_id in self.scheduler.table.jobs
            if known or self.world.now < FAULTS_END_S:
                self.world.after(CLIENT_RETRY_S, lambda: self._release(job_id))

    def _ask_later(self, delay_s: float, event: RestartAsked | ChangeAsked | DrainAsked) -> None:
        self.world.after(delay_s, lambda: self.scheduler.step(event) and None)

    def _remove(self, spec: JobSpec) -> None:
        """Removes a job. It may or may not have happened if the scheduler crashes, and counts as
        done. Often somebody takes the id for another job then, at once or later.
        """
        known = self.scheduler.table.jobs.get(spec.name)
        if known is None or not known.state.is_final or known.spec != spec:
            return
        self.removed.add((spec.name, spec.argv))
        self.scheduler.step(RemoveAsked(spec.name))
        if self.world.chance(0.8):
            again = replace(spec, argv=(*spec.argv, "again"))
            self.programs[again.name, again.argv] = self._make_program(again.devices)
            delay_s = self.world.rng.choice((0.0, 0.5, 20.0))
            self.world.after(delay_s, lambda: self._submit(again))
            if self.world.chance(0.3):
                late = delay_s + self.world.rng.uniform(5, 40)
                self.world.after(late, lambda: self._remove(again))

    # -- faults ------------------------------------------------------------------------------------

    def _plan_faults(self) -> None:
        rng = self.world.rng
        self.scheduler.crash = rng.choice((0.0, 0.0, 0.002, 0.02))
        period_s = rng.choice((1.0, 4.0, 15.0))
        at = 0.0
        while at < FAULTS_END_S:
            at += rng.expovariate(1 / period_s)
            self.world.after(min(at, FAULTS_END_S), self._do_harm)
        self.world.after(0.5, self._revive_scheduler)
        self.world.after(FAULTS_END_S, self._make_peace)
        if rng.random() < 0.3:
            self.world.after(rng.uniform(5.0, 30.0), self._copy_state)

    def _copy_state(self) -> None:
        """Keep a copy of the scheduler's state, which takes its place once or twice later on."""
        kept, known = self.store.copy(), (set(self.acknowledged), set(self.removed))
        for _ in range(self.world.rng.choice((1, 1, 2))):
            at = self.world.rng.uniform(2.0, 30.0)
            self.world.after(at, lambda: self._restore(kept, *known))

    def _restore(
        self, kept: dict[str, Any], acknowledged: set[Submission], removed: set[Submission]
    ) -> None:
        """Jobs since the copy are lost; other ones take the ids of most of them."""
        self.scheduler.kill()
        self.world.say("the scheduler's state is that of the copy")
        self.scheduler.restore(kept)
        self.restores += 1
        lost = self.acknowledged - acknowledged
        self.acknowledged, self.removed = set(acknowledged), set(removed)
        self.undrained.clear()
        for job_id, argv in sorted(lost):
            devices = self.world.rng.choice((1, 2))
            spec = JobSpec(name=job_id, argv=(*argv, f"restored{self.restores}"), devices=devices)
            self.programs[job_id, spec.argv] = self._make_program(devices)
            delay_s = self.world.rng.choice((0.5, 5.0, 20.0))
            self.world.after(delay_s, lambda s=spec: self._submit(s))  # type: ignore[misc]

    def _do_harm(self) -> None:
        rng = self.world.rng
        daemon = rng.choice(self.daemons)
        duration_s = rng.choice((0.5, 2.0, 8.0, 20.0, 60.0))
        match rng.randrange(12):
            case 0:
                self._kill(daemon, rng.choice((duration_s, 200.0)))
            case 1:
                daemon.freeze(duration_s)
            case 2 | 3:
                self._cut(
                    daemon, duration_s, rng.choice(((True, True), (True, False), (False, True)))
                )
            case 4:
                if daemon.connection:
                    daemon.connection.break_off()
            case 5:
                self.scheduler.kill()
            case 6:
                self.scheduler.freeze(min(duration_s, 20.0))
            case 7:
                self._kill_rank(daemon)
            case 8:
                self._fill_disk(duration_s)
            case 9:
                node = daemon.node if rng.random() < 0.3 else daemon.name
                self.scheduler.step(DrainAsked(node, rng.choice((0.0, 5.0))))
                self.undrained.difference_update(self._on(node))
                if rng.random() < 0.5:
                    self.world.after(rng.choice((1.0, 10.0)), lambda: self._undrain(node))
                self.world.after(30.0, lambda: self._kill_drained(daemon))
            case 10:
                daemon.shut_down()
            case _:
                self._freeze_rank(daemon, duration_s)

    def _on(self, node: str) -> set[str]:
        return {daemon.name for daemon in self.daemons if node in (daemon.node, daemon.name)}

    def _undrain(self, node: str) -> None:
        """Done, it is done for good, also if processes are away or crash after it."""
        if self.scheduler.step(UndrainAsked(node)):
            self.undrained |= self._on(node)

    def _kill_drained(self, daemon: Daemon) -> None:
        if daemon.name not in self.undrained:
            self._kill(daemon, 1.0)

    def _check_undrained(self) -> None:
        if not self.quality.is_stream:  # the word itself may get lost then
            return
        for name, known in self.scheduler.table.daemons.items():
            if name in self.undrained and known.state is DaemonState.DRAINING:
                raise Violation(f"{name} drains though that was undone")

    def _kill(self, daemon: Daemon, duration_s: float) -> None:
        if daemon.is_alive:
            daemon.kill()
            self.world.after(duration_s, lambda: None if daemon.is_alive else daemon.start())

    def _cut(self, daemon: Daemon, duration_s: float, ways: tuple[bool, bool]) -> None:
        self.world.say(f"{daemon.name} is cut off {ways} for {duration_s} s")
        daemon.line.set(*ways)
        self.world.after(duration_s, lambda: self._heal(daemon))

    def _heal(self, daemon: Daemon) -> None:
        if daemon.line.is_cut:
            daemon.fine_since = self.world.now
        daemon.line.set(False, False)
        if daemon.connection:
            daemon.connection.heal()

    def _kill_rank(self, daemon: Daemon) -> None:
        if daemon.worker and not daemon.is_frozen and daemon.worker.phase != "gathered":
            code, reason = self.world.rng.choice(((137, "SIGNAL"), (139, "SIGNAL")))
            daemon.end(daemon.worker, code, reason, "killed by the test")

    def _freeze_rank(self, daemon: Daemon, duration_s: float) -> None:
        if daemon.worker:
            worker = daemon.worker
            worker.is_frozen = True
            self.world.after(duration_s, lambda: setattr(worker, "is_frozen", False))

    def _fill_disk(self, duration_s: float) -> None:
        self.world.say("the scheduler's disk is full")
        self.store.is_full = True
        self.world.after(min(duration_s, 8.0), lambda: setattr(self.store, "is_full", False))

    def _revive_scheduler(self) -> None:
        if not self.scheduler.is_up:
            delay_s = self.world.rng.choice((0.1, 1.0, 3.0, 15.0)) if self.is_faulty else 0.1
            self.world.after(
                delay_s, lambda: None if self.scheduler.is_up else self.scheduler.start()
            )
        self.world.after(0.5 if self.is_faulty else 5.0, self._revive_scheduler)

    def _make_peace(self) -> None:
        """No new faults from here on; frozen and absent processes come back by themselves."""
        self.world.say("faults end")
        self.is_faulty = False
        self.scheduler.crash = 0.0
        self.quality.loss = self.quality.duplication = 0.0
        self.store.is_full = False
        for daemon in self.daemons:
            self._heal(daemon)

    # -- the end -----------------------------------------------------------------------------------

    def run(self) -> None:
        self.world.run_until(FAULTS_END_S + 70.0)
        self._check_undrained()
        self._restart_drained()
        self.world.run_until(self.world.now + 40.0)
        end = self.world.now + REST_S
        while self.world.now < end and not self._rests():
            for job_id in list(self.scheduler.table.jobs):
                if self._can_never_end(job_id):
                    self._cancel(job_id)
            self.world.run_until(self.world.now + 5.0)
        self._check_rest()
        self._run_one_more()

    def _rests(self) -> bool:
        """Whether all is at rest, and still is when the words on their way have arrived: a client
        may take an id again meanwhile.
        """
        if not self._is_at_rest():
            return False
        self.world.run_until(self.world.now + 5.0)
        return self._is_at_rest()

    def _restart_drained(self) -> None:
        for daemon in self.daemons:
            known = self.scheduler.table.daemons.get(daemon.name)
            is_draining = known is not None and known.state is DaemonState.DRAINING
            if (is_draining or daemon.mind.is_draining) and not daemon.worker:
                self._kill(daemon, 0.5)

    def _can_never_end(self, job_id: str) -> bool:
        spec = self.scheduler.table.jobs[job_id].spec
        nodes = [
            daemon.node
            for daemon in self.daemons
            if daemon.node not in spec.exclude_nodes and daemon.node in (spec.only_nodes or NODES)
        ]
        fits = spec.devices <= len(nodes)
        share = spec.devices // (spec.nodes or 1)
        spread = sum(nodes.count(node) >= share for node in NODES) >= spec.nodes
        return self.programs[job_id, spec.argv].is_endless or not fits or not spread

    def _is_at_rest(self) -> bool:
        self._restart_drained()
        table = self.scheduler.table
        is_quiet = all(record.state.is_final for record in table.jobs.values())
        is_idle = all(daemon.worker is None and not daemon.exits for daemon in self.daemons)
        all_up = all(known.state == "up" for known in table.daemons.values())
        return is_quiet and is_idle and all_up and len(table.daemons) == len(self.daemons)

    def _check_rest(self) -> None:
        table = self.scheduler.table
        for record in table.jobs.values():
            if not record.state.is_final:
                raise Violation(f"{record.id} never ended: {record.state} {record.pending}")
        if not self._is_at_rest():
            said = [f"{d.name}: {d.worker} {list(d.exits)} {d.is_alive}" for d in self.daemons]
            states = [f"{known.id} {known.state}" for known in table.daemons.values()]
            raise Violation(f"the daemons never came to rest: {said}, {states}")
        there = {(record.id, record.spec.argv) for record in table.jobs.values()}
        if lost := self.acknowledged - self.removed - there:
            raise Violation(f"accepted jobs are lost: {sorted(lost)}")
        self._check_lives()
        loaded = self.store.load()
        again = Table(loaded.jobs, loaded.epoch, self.settings)
        if list(again.jobs.values()) != list(table.jobs.values()) or again.epoch != table.epoch:
            raise Violation("the store does not replay to the state of the table")

    def _check_lives(self) -> None:
        """Checks that a job's steps and end were those of its own ranks, not those of an earlier
        job of its id, and nothing of that one is left.
        """
        for record in self.scheduler.table.jobs.values():
            steps = [
                training.step for training in self.trainings.values()
                if (training.job_id, training.argv) == (record.id, record.spec.argv)
            ]  # fmt: skip
            if record.last_step > max(steps, default=0):
                raise Violation(f"{record.id} is said to be at step {record.last_step}")
            run = self.trainings.get(_run_of(record))
            codes = run.codes if run is not None else {}
            has_succeeded = record.state is JobState.SUCCEEDED
            if has_succeeded and [*codes.values()] != [0] * len(record.assignments):
                raise Violation(f"{record.id} is said to have succeeded, but its ranks: {codes}")
        if not self.quality.is_stream:  # a word to forget may get lost then
            return
        for daemon in self.daemons:
            for name in daemon.folders:
                job, life = parse_folder_name(name) or ("", 0)
                if life <= self.store.removed.get(job, -1):
                    raise Violation(f"{daemon.name} still has {name}, which was removed")

    def _run_one_more(self) -> None:
        """The next job on the same devices succeeds after any faults."""
        spec = JobSpec(name="last", argv=("train",), devices=self.num_devices)
        self.programs["last", spec.argv] = Program(
            steps=3, step_s=0.1, checkpoint_every=0, stop_s=0.1
        )
        self.scheduler.step(Submitted("last", spec, "user", "key", self.world.wall))
        self.world.run_until(self.world.now + 60.0)
        record = self.scheduler.table.jobs["last"]
        if record.state is not JobState.SUCCEEDED:
            raise Violation(f"the next job did not succeed: {record.state} {record.cause}")


def _run_of(record: JobRecord) -> tuple[Run, Place]:
    places = (*record.spec.argv, *(place.daemon for place in record.assignments))
    return (record.id, record.life, record.attempt), places


def run_seed(seed: int) -> Outcome:
    """Runs one cluster from its first daemon to its rest."""
    outcome = Outcome(seed)
    simulation = None
    try:
        simulation = Simulation(seed)
        simulation.run()
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
        if not isinstance(error, Violation):
            import traceback

            outcome.error += "\n" + traceback.format_exc()
    if simulation is not None:
        jobs = simulation.scheduler.table.jobs.values()
        outcome.steps, outcome.jobs = simulation.scheduler.num_steps, len(jobs)
        outcome.crashes, outcome.restores = simulation.scheduler.num_crashes, simulation.restores
        outcome.preempted = len(simulation.scheduler.preempted)
        outcome.restarts = sum(max(record.attempt - 1, 0) for record in jobs)
        again = [record for record in jobs if record.life and record.state is JobState.SUCCEEDED]
        outcome.later_lives = len(again)
        outcome.states = Counter(f"{record.state} {record.reason}" for record in jobs)
        if outcome.error:
            outcome.trace = list(simulation.world.trace)
    return outcome


def replay_command(seed: int) -> str:
    return f"python -m tests.faults.simulation --start {seed} --seeds 1 --verbose"


def run_seeds(start: int, count: int, processes: int) -> list[Outcome]:
    seeds = range(start, start + count)
    if processes == 1 or count == 1:
        return [run_seed(seed) for seed in seeds]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(run_seed, seeds, chunksize=10))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", "-v", action="store_true", help="what happened, of failures")
    options = parser.parse_args()
    began = time.monotonic()
    outcomes = run_seeds(options.start, options.seeds, options.processes)
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        if options.verbose:
            print("\n".join(outcome.trace))
        print(f"seed {outcome.seed}: {outcome.error}\n  again: {replay_command(outcome.seed)}")
    _summarize(outcomes, time.monotonic() - began)
    return 1 if failed else 0


def _summarize(outcomes: list[Outcome], seconds: float) -> None:
    states = sum((outcome.states for outcome in outcomes), Counter[str]())
    jobs, steps = sum(o.jobs for o in outcomes), sum(o.steps for o in outcomes)
    print(
        f"{len(outcomes)} seeds, {sum(bool(o.error) for o in outcomes)} failed, {seconds:.0f} s; "
        f"{jobs} jobs, {sum(o.restarts for o in outcomes)} restarts, "
        f"{sum(o.later_lives for o in outcomes)} successes under ids used again, "
        f"{sum(o.preempted for o in outcomes)} preempted, "
        f"{sum(o.crashes for o in outcomes)} crashes of the scheduler, {steps} steps"
    )
    for state, count in states.most_common():
        print(f"  {count:7d} {state}")


if __name__ == "__main__":
    sys.exit(main())
