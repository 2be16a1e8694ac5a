"""Disks that are full, read-only, or somebody else's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from oneflow.cluster.connection import NotNowError
from tests.support.cluster import Rig
from tests.support.waiting import SceneError, wait_until

from .ground import (
    END_S,
    MIB,
    STEPS,
    Disk,
    Ground,
    ends_well,
    expect,
    expect_next,
    fill,
    impatient,
    train,
)


def full_checkpoints(ground: Ground) -> str:
    """Checkpoints cannot be written for a while: training goes on, the previous ones stay."""
    with Disk(ground.folder / "ckptdisk", 4 * MIB) as disk, ground.cluster() as rig:
        folder = disk.path / "job"
        job = train(rig, ground, checkpoint_dir=str(folder), checkpoint_every=5)
        wait_until(lambda: job.status().last_checkpoint_step >= 5, "a checkpoint is complete")
        with fill(disk.path):
            step = job.status().last_step
            wait_until(lambda: job.status().last_step >= min(step + 25, STEPS), "it goes on")
            kept = job.status().last_checkpoint_step
        ends_well(job, ground)
        said = [line.text for line in job.logs() if "DISK_FULL" in line.text]
        expect(bool(said), "nobody said that a checkpoint was not written")
        last = job.status().last_checkpoint_step
        expect(last > kept or last >= STEPS - 5, f"none after {kept}: {last}")
        verify(folder)
        return f"kept {kept}, then {last}; {said[0].partition('checkpoint of')[2][:70]}"


def verify(folder: Path) -> None:
    """Each checkpoint that is there is whole."""
    whole = [str(path) for path in folder.rglob("step-*") if path.is_dir()]
    expect(bool(whole), "there is no checkpoint")
    words = [sys.executable, "-m", "oneflow", "ckpt", "verify", *whole]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    expect(done.returncode == 0, f"a damaged checkpoint: {done.stdout} {done.stderr}")


def full_journal(ground: Ground) -> str:
    """No new jobs; running ones go on, and all is as before when there is room again."""
    with (
        Disk(ground.folder / "statedisk", 160 * MIB) as disk,
        ground.cluster(disk.path) as rig,
    ):
        return _full_journal(rig, ground, disk.path)


def _full_journal(rig: Rig, ground: Ground, disk: Path) -> str:
    job = train(rig, ground)
    wait_until(lambda: job.status().last_step >= 10, "it runs")
    with impatient(rig) as client, fill(disk):
        try:
            client.submit(str(ground.jobs / "dense.job"), job_id="refused", devices=2, steps=9)
            raise SceneError("a job was taken that cannot be kept")
        except NotNowError as error:
            said = str(error)
        expect("disk" in said or "room" in said, f"unclear: {said}")
        time.sleep(1.0)
        client.status()
        shown = {record.id for record in client.jobs()}
    expect("refused" not in shown, "a refused job is shown")
    ends_well(job, ground)
    expect_next(rig, ground)
    os.kill(rig.pid("scheduler"), 9)
    wait_until(lambda: not rig.is_alive("scheduler"), "it ends")
    rig.repair()
    found = {record.id for record in rig.client().jobs()}
    expect(job.id in found and "refused" not in found, f"after a restart: {sorted(found)}")
    return said


def full_blobs(ground: Ground) -> str:
    """Brings files that find no room: refused, and taken later."""
    with (
        Disk(ground.folder / "blobdisk", 160 * MIB) as disk,
        ground.cluster(disk.path) as rig,
    ):
        with impatient(rig) as client, fill(disk.path, leaving=32 * MIB):
            try:
                client.submit(str(ground.jobs / "dense.job"), devices=2)
                raise SceneError("a file was taken that there is no room for")
            except NotNowError as error:
                said = str(error)
        expect("no room" in said, f"unclear: {said}")
        expect_next(rig, ground)
        return said


def read_only_node(ground: Ground) -> str:
    """A daemon's disk becomes read-only and writable again."""
    with (
        Disk(ground.folder / "rodisk", 64 * MIB) as disk,
        ground.cluster(daemon={"state_dir": str(disk.path)}) as rig,
    ):
        with disk.read_only():
            record = train(rig, ground, max_restarts=0).wait(END_S)
        expect(str(record.state) == "FAILED", f"it is {record.state}")
        expect("Read-only" in record.cause, f"unclear: {record.cause}")
        expect_next(rig, ground)
        return f"{record.reason}: {record.cause[:80]}"
