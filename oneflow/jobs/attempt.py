"""One attempt of a job on this rank, from `begin` to its end."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from oneflow.core.errors import CheckpointError, OneFlowError
from oneflow.core.job_config import Overrides
from oneflow.jobs.jobfile import JobFile
from oneflow.jobs.reporting import Reporter, note_device_error
from oneflow.jobs.restoring import choose, is_allowed
from oneflow.jobs.running import bind_job, join_ranks
from oneflow.jobs.sources import Access
from oneflow.jobs.tables import check_folders
from oneflow.jobs.training import Options, Training
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.limits import folder_name

if TYPE_CHECKING:
    from oneflow.jobs.worker import Commands

KINDS = {pb.JobSpec.GRAPH: "graph", pb.JobSpec.INFERENCE: "inference"}
CHECKPOINTS = "checkpoints"


def run_attempt(begin: pb.Begin, daemon: Commands, roots: tuple[Path, ...]) -> None:
    """Run an attempt to its end. Raises the error that ends it, which has `last_step`."""
    prepare = begin.prepare
    job_dir = Path(begin.job_dir)
    job_dir.mkdir(parents=True, exist_ok=True)
    # One rank of a host compares the digest of the data, which may be large.
    spec = prepare.spec
    overrides = Overrides(spec.auto_parallel, spec.zero, spec.amp)
    file = JobFile(begin.job_file, check_data=prepare.local_rank == 0, overrides=overrides)
    file.check_kind(KINDS[prepare.spec.kind])
    check_folders(file.tables, [job_dir, *roots])
    if prepare.spec.kind == pb.JobSpec.INFERENCE:
        from oneflow.jobs.serving import serve

        serve(file, begin, daemon)
        return
    options = options_of(file, begin, roots)
    join_ranks()
    if options.resume_from:  # nothing is compiled or allocated for a checkpoint that is damaged
        chosen = choose(options.resume_from, may_fall_back=options.may_fall_back)
        options = dataclasses.replace(options, resume_from=chosen)
    bound = bind_job(file, prepare.spec.device_type or "cpu", begin.plan_file, job_dir)
    with closing(Reporter(daemon.frames, prepare.id, options.steps)) as reporter:
        try:
            header = {"job": prepare.id.job_id, "attempt": prepare.id.attempt}
            daemon.tracing.begin(bound.job.executor, job_dir, prepare.id.rank, header)
            with closing(daemon.tracing):
                Training(bound, options, reporter, daemon.stop, daemon.tracing).run()
            bound.close()
        except Exception as error:
            if isinstance(error, OneFlowError):
                error.last_step = reporter.last_step  # type: ignore[attr-defined]
            note_device_error(error)
            raise


def options_of(file: JobFile, begin: pb.Begin, roots: tuple[Path, ...]) -> Options:
    """Return the options asked for at submission, else those of the file."""
    p, d = begin.prepare, file.description
    job_dir = Path(begin.job_dir)
    folder, name = job_dir / CHECKPOINTS, folder_name(p.id.job_id or d.name, p.id.life)
    own = [job_dir, *roots]
    if p.spec.checkpoint_dir:
        folder = Path(p.spec.checkpoint_dir) / name
    # It may begin with what another job has saved, but write, and clear away, only its own.
    for path, allowed in ((str(folder), own), (p.resume_from, [*own, job_dir.parent])):
        if path and not is_allowed(path, allowed):
            raise CheckpointError(
                f"{path} is in no folder that jobs may use on this host; whoever runs `daemon run` "
                "or `cluster up` can allow it by --data-root (or ONEFLOW_DATA_ROOTS)"
            )
    return Options(
        steps=p.total_steps or p.spec.steps or d.steps,
        every=p.spec.checkpoint_every or d.checkpoints.every,
        keep=p.spec.checkpoint_keep or d.checkpoints.keep,
        resume_from=p.resume_from,
        may_fall_back=p.resume_from != p.spec.resume_from,
        job_dir=job_dir,
        checkpoint_dir=folder,
        name=name,
        save_key=f"{p.id.job_id}.{p.id.attempt}.{p.job_key}",
        access=Access(roots, job_dir),
    )
