"""`flow.cluster.connect`: a cluster, as one who gives it jobs sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.cluster.arrays import read_array
from oneflow.cluster.connection import Connection, Patience
from oneflow.cluster.finding import find_address, find_tls, is_own, runs_here
from oneflow.cluster.job import Job
from oneflow.cluster.settings import Settings, config_dir, environment, load_settings
from oneflow.cluster.submitting import (
    OPTIONS,
    check_argv,
    checkpoint_here,
    job_file_of,
    make_spec,
    new_job_id,
    send_job,
    send_job_file,
    upload_folder,
    upload_requirements,
)
from oneflow.core.errors import AuthError, ClusterRequestError, ClusterUnreachableError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.limits import check_job_id, check_spec
from oneflow.scheduler.jobs.records import JobKind, JobRecord, JobSpec
from oneflow.scheduler.jobs.specs import record_from_proto
from oneflow.scheduler.jobs.tokens import token_from, token_origin
from oneflow.services.proof import ImpostorError

if TYPE_CHECKING:
    from oneflow.core.rpc import Message
    from oneflow.graph.graph import Graph
    from oneflow.io.files import AnyPath

PAGE = 100


@dataclass(frozen=True)
class UsageRow:
    """The use that some jobs made of devices. keys: user, day, name or queue, as it was asked for.

    jobs, attempts: that ran then. device_s: devices times seconds in which their ranks ran.
    """

    keys: tuple[str, ...]
    device_type: str
    jobs: int
    attempts: int
    device_s: float


class Cluster:
    """A connection to a scheduler; threads may share it. Use it in a `with`, or `close` it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._device_types: set[str] = set()

    @property
    def address(self) -> str:
        return self.connection.address

    def __repr__(self) -> str:
        return f"<Cluster {self.address}>"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Jobs go on."""
        self.connection.close()

    # ---- jobs ------------------------------------------------------------------------------------

    def submit(
        self, source: Graph | AnyPath, *, job_id: str | None = None, **options: object
    ) -> Job:
        """A graph job, or an inference job: no code of it is run on the cluster.

        source: an nn.Graph, or the path of a job file.  job_id: a job of this id is submitted
        once, however often this is called; None: a new one.  options: devices, device_type,
        nodes, name, queue, priority, preemptible, env, steps, max_restarts, restart_on,
        time_limit ("2h"), checkpoint_every, checkpoint_keep, checkpoint_dir, resume_from, after
        (the id of a job that must succeed before, "ID:any" for one that must end, or a list of
        these), hold=True (until it is released), only_nodes, exclude_nodes and require_labels
        ("gpu=h200", or lists); auto_parallel=True, zero=1 to 3, amp="bfloat16": see docs/JOBS.md;
        for a graph also those of `flow.jobs.save`: data, inputs, outputs, record,
        stop_on_nonfinite.

        Without a name it has that of the file. Raises JobSpecError for a job that cannot be
        accepted.
        """
        asked = {name: options.pop(name) for name in list(options) if name in OPTIONS}
        if not isinstance(source, (str, os.PathLike)) and "steps" in asked:
            options["steps"] = asked.pop("steps")  # learning rates are written for so many
        with job_file_of(source, options) as path:
            digest, kind, name = send_job_file(self.connection, path)
        if asked.get("name") is None:
            asked["name"] = name
        return self._send(job_id, make_spec(kind, self._placed(asked), graph=digest))

    def submit_script(
        self,
        argv: Sequence[str],
        *,
        working_dir: AnyPath | None = None,
        hidden_files: bool = True,
        requirements: AnyPath | None = None,
        job_id: str | None = None,
        **options: object,
    ) -> Job:
        """A program on each of its devices, where the operator allows that. No shell sees argv.

        working_dir: a folder that is sent along, and in which the program runs.  hidden_files: with
        its files whose names begin with a dot.  requirements: a list of packages, as for
        `pip install -r`; each node makes an environment of them, once for all jobs with that list.
        options: as for `submit`, but those of graphs.
        """
        return self._send(
            job_id, self._script(argv, working_dir, hidden_files, requirements, options)
        )

    def submit_array(
        self,
        argv: Sequence[str],
        array: str,
        *,
        array_file: AnyPath | None = None,
        working_dir: AnyPath | None = None,
        hidden_files: bool = True,
        requirements: AnyPath | None = None,
        job_id: str | None = None,
        **options: object,
    ) -> list[Job]:
        """One program many times: jobs ID_0, ID_1, ..., each with its number in the variable
        ONEFLOW_ARRAY_INDEX, and for `{index}` in words of argv and values of env.

        array: "0-9", "1,3,5-7", "0-9%2" (two at once).  array_file: a .csv or .jsonl file: `{name}`
        is filled in from the row of that number; array is "" or "%2" for all rows.  job_id: of the
        array.  Others: as for `submit_script`.

        Raises JobSpecError, or ClusterRequestError if the cluster takes no more of them: the same
        with the same id submits the rest.
        """
        members = read_array(array, None if array_file is None else Path(array_file))
        spec = self._script(argv, working_dir, hidden_files, requirements, options)
        array_id, jobs = job_id or new_job_id(), []
        specs = members.specs(array_id, spec)
        for member_id, member in specs.items():
            check_job_id(member_id)
            check_spec(member)
        for member_id, member in specs.items():
            try:
                jobs.append(self._send(member_id, member))
            except ClusterRequestError as error:
                done = f"{len(jobs)} of {len(specs)} members of array {array_id} are submitted"
                error.args = (f"{error}; {done}, and the same with this id submits the rest",)
                raise
        return jobs

    def array(self, array_id: str, state: str = "") -> list[Job]:
        """The jobs of an array that are known, by their indices; none if there is no such array.

        state: the states that are meant, with commas between; "": any.
        """
        known = self.jobs(array=array_id, state=state) if state else self.jobs(array=array_id)
        found = sorted(known, key=lambda record: record.spec.array_index)
        return [Job(self.connection, record.id) for record in found]

    def _script(
        self,
        argv: Sequence[str],
        working_dir: AnyPath | None,
        hidden_files: bool,
        requirements: AnyPath | None,
        options: Mapping[str, object],
    ) -> JobSpec:
        archive = ""
        if working_dir:
            archive = upload_folder(self.connection, Path(working_dir), hidden_files)
        words = check_argv(argv)
        listed = ""
        if requirements:
            listed = upload_requirements(self.connection, Path(requirements))
        placed = self._placed(options)
        return make_spec(JobKind.SCRIPT, placed, argv=words, archive=archive, requirements=listed)

    def _placed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Choose a device type: where all devices are GPUs, a job that does not say means them."""
        if options.get("device_type") is None and self._device_types == {"cuda"}:
            return {**options, "device_type": "cuda"}
        return dict(options)

    def _send(self, job_id: str | None, spec: JobSpec) -> Job:
        if spec.resume_from and runs_here(self.address):
            spec = replace(spec, resume_from=checkpoint_here(spec.resume_from))
        record = send_job(self.connection, job_id or new_job_id(), spec)
        return Job(self.connection, record.id)

    def job(self, job_id: str) -> Job:
        """A job by its id; nothing is asked yet."""
        return Job(self.connection, job_id)

    def jobs(self, limit: int | None = None, **filters: str) -> Iterator[JobRecord]:
        """Records of jobs, the newest first. filters: state, name, owner, kind; done there."""
        cursor = ""
        while True:
            page, cursor = self.page(filters, min(limit or PAGE, PAGE), cursor)
            yield from page if limit is None else page[:limit]
            limit = None if limit is None else limit - len(page)
            if not cursor or (limit is not None and limit <= 0):
                return

    def page(
        self, filters: Mapping[str, str], limit: int, cursor: str = ""
    ) -> tuple[list[JobRecord], str]:
        """Up to `limit` records from the cursor on, and the next cursor, "" at the end."""
        request = pb.ListRequest(filters=dict(filters), limit=limit, cursor=cursor)
        reply = self.connection.call("Jobs", "List", request)
        return [record_from_proto(job) for job in reply.jobs], reply.cursor

    def usage(self, by: Sequence[str] = ("user",), since: float = 0.0) -> list[UsageRow]:
        """Return the use of devices, a row for each user, day (of UTC), name or queue and type of
        device.

        Of the token's own jobs, or with an admin's of all, also of jobs that were removed since.

        since: seconds since the epoch. Raises ClusterRequestError.
        """
        request = pb.UsageRequest(by=by, since=since)
        rows = self.connection.call("Jobs", "Usage", request).rows
        return [
            UsageRow(tuple(r.keys), r.device_type, r.jobs, r.attempts, r.device_s) for r in rows
        ]

    # ---- the cluster -----------------------------------------------------------------------------

    def status(self) -> pb.ClusterStatus:
        """A ClusterStatus: version, addresses, daemons, numbers of jobs by state."""
        found: pb.ClusterStatus = self.connection.call("Cluster", "Status", pb.Empty())
        self._device_types = {daemon.device.partition(":")[0] for daemon in found.daemons}
        return found

    def drain(self, node: str = "", grace_s: float = 0.0) -> Any:
        """A node, or with "" all, takes no new work. Returns the status."""
        return self.connection.call("Cluster", "Drain", pb.DrainRequest(node=node, grace_s=grace_s))

    def undrain(self, node: str = "") -> Any:
        """A node, or with "" all, takes work again. Returns the status."""
        return self.connection.call("Cluster", "Undrain", pb.DrainRequest(node=node))

    def ask(self, method: str, request: Message) -> Any:
        """A call of the service Cluster."""
        return self.connection.call("Cluster", method, request)


def connect(
    address: str | None = None,
    token: str | None = None,
    *,
    settings: Settings | None = None,
    patience: Patience | None = None,
) -> Cluster:
    """A cluster whose scheduler answers at `address` (host:port).

    address: None: ONEFLOW_SCHEDULER_ADDRESS, else that of the configuration, else that of the
    cluster that `oneflow cluster up` started on this machine.
    token: None: ONEFLOW_AUTH_TOKEN, else the file of ONEFLOW_AUTH_TOKEN_FILE, else <config>/token.

    Raises ClusterUnreachableError (exit code 69), AuthError (77) or ConfigError (78).
    """
    found = settings or load_settings({"client.address": address})
    where, limits = find_address(found), patience or Patience()
    tls, source = find_tls(found), _token_source(token)
    connection = Connection(where, source, tls, limits, is_own=is_own(where))
    cluster = Cluster(connection)
    try:
        cluster.status()
    except (AuthError, ImpostorError) as error:
        cluster.close()
        named = token_origin(environment(), config_dir()) if token is None else ""
        if not named:
            raise
        raise type(error)(f"{error} (the token is from {named})") from None
    except ClusterUnreachableError:
        cluster.close()
        raise
    return cluster


def _token_source(token: str | None) -> Callable[[], str | None]:
    """Read anew for each call: a token may be replaced while we wait for a job."""
    if token is not None:
        return lambda: token
    return lambda: token_from(environment(), config_dir())
