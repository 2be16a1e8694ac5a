"""Resume proofs: a job that is disturbed ends with the very bits of one that is not.

    python -m campaigns.resume [--proofs N] [--seed S]

Each proof: a program, a fault and a step drawn from the seed; afterwards the losses of all steps
(float.hex) and the digest of the final variables, optimizer state among them, are compared with
those of a run without faults.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneflow.core.errors import OneFlowError
from oneflow.scheduler.jobs.records import JobRecord
from tests.support.cluster import DEVICES, Rig, end_in_order, export_jobs
from tests.support.waiting import SceneError, wait_until

from .models import NAMES, STEPS

FAULTS = (
    "kill worker", "stop worker", "kill daemon", "stop daemon", "kill scheduler", "stop scheduler",
    "kill at ckpt.write", "kill at ckpt.before_sync", "kill at ckpt.before_manifest",
    "kill at ckpt.before_rename", "kill at ckpt.before_last", "kill at ckpt.after_last",
    "kill at transfer.half", "kill at collective.entered", "kill at worker.step_done",
)  # fmt: skip
END_S, STOPPED_S = 120.0, 4.0
LAST = STEPS - 40
"""The last step to aim at: a fault takes its time, and every place must still be passed."""


@dataclass(frozen=True)
class Proof:
    """fault at about that step of that program; rank: of the worker or daemon that has it."""

    seed: int
    program: str
    fault: str
    step: int
    rank: int

    @classmethod
    def draw(cls, seed: int) -> Proof:
        rng = random.Random(seed)
        program = NAMES[seed % len(NAMES)]
        return cls(seed, program, rng.choice(FAULTS), rng.randrange(1, LAST), rng.randrange(2))

    def fits(self, record: JobRecord) -> str:
        """ "" or why the job was not disturbed as it should have been: then its bits prove nothing.

        A scheduler's end disturbs no job, nor does a pause that is shorter than the patience.
        """
        must_restart = "scheduler" not in self.fault and not self.fault.startswith("stop")
        if must_restart and record.attempt < 2:
            return "the fault came too late: one attempt"
        if "scheduler" in self.fault and record.attempt > 1:
            return f"the job went on in attempt {record.attempt}: {record.cause}"
        return ""


@dataclass(frozen=True)
class Bits:
    """All that must be equal."""

    losses: tuple[tuple[int, str], ...]
    variables: str

    def difference(self, wanted: Bits) -> str:
        """ "": none."""
        pairs = zip(wanted.losses, self.losses, strict=False)
        odd = [step for (step, a), (_, b) in pairs if a != b]
        if odd or len(self.losses) != len(wanted.losses):
            return f"losses differ from step {odd[0] if odd else len(self.losses)} on"
        return "" if self.variables == wanted.variables else "the final variables differ"


def bits_of(job: Any) -> Bits:
    lines = job.output("metrics.jsonl").decode().splitlines()
    losses = tuple((v["step"], float(v["loss"]).hex()) for v in map(json.loads, lines))
    digest = hashlib.sha256()
    for name, array in sorted(job.variables().items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return Bits(losses, digest.hexdigest())


def run_once(rig: Rig, jobs: Path, proof: Proof | None, program: str) -> tuple[Bits, Any]:
    """The bits, and the record. proof: None for the undisturbed run."""
    cluster = rig.client()
    job = cluster.submit(str(jobs / f"{program}.job"), devices=2, max_restarts=5)
    if proof is not None:
        wait_until(lambda: _is_at(job, proof.step), f"step {proof.step}")
        _disturb(rig, proof)
    end = time.monotonic() + END_S
    while True:
        rig.repair()
        record = job.status()
        if record.state.is_final:
            break
        if time.monotonic() > end:
            raise SceneError(f"{job.id} is {record.state}: {record.pending}")
        time.sleep(0.05)
    if str(record.state) != "SUCCEEDED":
        raise SceneError(f"{record.state} {record.reason}: {record.cause}")
    bits = bits_of(job)
    if [step for step, _ in bits.losses] != list(range(1, STEPS + 1)):
        raise SceneError(f"steps {[step for step, _ in bits.losses]}")
    return bits, record


def _is_at(job: Any, step: int) -> bool:
    record = job.status()
    return bool(record.last_step >= step or record.state.is_final)


def _disturb(rig: Rig, proof: Proof) -> None:
    what, _, where = proof.fault.partition(" at ")
    if where:
        rig.arm(where)
        try:
            os.kill(rig.held(where), signal.SIGKILL)
        finally:
            rig.release()
        return
    verb, target = what.split()
    device = DEVICES[proof.rank]
    pid = rig.workers(device)[0] if target == "worker" else 0
    pid = pid or rig.pid("scheduler" if target == "scheduler" else device)
    os.kill(pid, signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
    if verb == "stop":
        time.sleep(1.0 if target == "scheduler" else STOPPED_S)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    elif target != "worker":
        name = "scheduler" if target == "scheduler" else device
        wait_until(lambda: not rig.is_alive(name), f"{name} ends")


def run_proofs(folder: Path, seeds: Sequence[int], seconds: float = 1e9) -> list[tuple[Proof, str]]:
    """Each with "" or the fault; ends when the time is over."""
    jobs, place = folder / "jobs", folder / "rig"
    for path in (jobs, place):
        path.mkdir(parents=True)
    export_jobs(jobs)
    end, found = time.monotonic() + seconds, []
    with Rig(place) as cluster:
        whole: dict[str, Bits] = {}
        for seed in seeds:
            if time.monotonic() > end:
                break
            proof = Proof.draw(seed)
            if proof.program not in whole:
                whole[proof.program], _ = run_once(cluster, jobs, None, proof.program)
            found.append((proof, _prove(cluster, jobs, proof, whole[proof.program])))
    return found


def _prove(rig: Rig, jobs: Path, proof: Proof, wanted: Bits) -> str:
    started = time.monotonic()
    said, attempts = "", 0
    try:
        bits, record = run_once(rig, jobs, proof, proof.program)
        attempts = record.attempt
        said = bits.difference(wanted) or proof.fits(record)
    except (SceneError, OneFlowError) as error:
        said = f"{type(error).__name__}: {error}"
        rig.release()
        rig.repair()
    print(
        f"seed {proof.seed:4} {proof.program:10} {proof.fault:28} step {proof.step:3} "
        f"{attempts} attempts {time.monotonic() - started:5.1f} s  {said or 'identical'}",
        flush=True,
    )
    return said


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--proofs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--seconds", type=float, default=1e9)
    args = parser.parse_args()
    end_in_order()
    with tempfile.TemporaryDirectory(prefix="oneflow-rig-") as folder:
        seeds = range(args.seed, args.seed + args.proofs)
        found = run_proofs(Path(folder), seeds, args.seconds)
    failed = [(proof, said) for proof, said in found if said]
    for proof, said in failed:
        again = f"python -m campaigns.resume --proofs 1 --seed {proof.seed}"
        print(f"{proof}: {said}\n  again: {again}")
    print(f"{len(found)} proofs, {len(found) - len(failed)} identical")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
