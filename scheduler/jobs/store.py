"""The store that survives the scheduler, in SQLite: jobs, epochs, tokens, places and uses of
attempts, and metric points.

Durable means: written and synced before the call returns (write-ahead log, full sync). A torn tail
of the log, as a power cut leaves it, is dropped by SQLite: the last transactions are gone whole.
Metric points are the exception; they are written without a sync and may lose their last seconds.

One process holds the file, exclusively; one thread at a time may call.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TypeAlias

import msgspec

from oneflow.core.errors import ConfigError, StoreError
from oneflow.scheduler.jobs.events import (
    CurvePoint,
    Remove,
    Save,
    SaveClock,
    SaveDrain,
    SaveEpoch,
    SaveJournal,
    SaveUse,
)
from oneflow.scheduler.jobs.journal import MAX_STARTS, Journal, opened
from oneflow.scheduler.jobs.records import Assignment, JobRecord, TokenRecord, Use
from oneflow.scheduler.jobs.retention import MAX_REMOVED
from oneflow.services.failpoints import failpoint

Execute: TypeAlias = Callable[..., sqlite3.Cursor]

HEADER_NBYTES = 100  # of every SQLite file
MAX_POINTS_PER_JOB = 10_000
MAX_POINTS = 500_000  # of all jobs; beyond, those of the job with most of them get sparser
MAX_ATTEMPTS_PER_JOB = 1000  # whose places are kept
MAX_USES = 200_000  # attempts whose devices and times are known, of forgotten jobs, too
MAX_INDEX = (1 << 62) - 1  # of a point; SQLite's numbers have 63 bits
MAX_WAL_NBYTES = 16 << 20  # that stay on the disk after it was written back
MAX_FREE_NBYTES = 8 << 20  # of the file, without use, before it is made smaller
STEP_PAGES = 2000  # by so much at once, so that nobody waits long
APPLICATION_ID = 0x0F10C1B5  # in the file's header: tells our databases from others
SCHEMA = (
    """
    CREATE TABLE jobs (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
                       state TEXT NOT NULL, body BLOB NOT NULL);
    CREATE TABLE epochs (one INTEGER PRIMARY KEY CHECK (one = 1), last INTEGER NOT NULL);
    INSERT INTO epochs VALUES (1, 0);
    CREATE TABLE tokens (digest BLOB PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL,
                         created_at REAL NOT NULL, expires_at REAL NOT NULL,
                         revoked INTEGER NOT NULL);
    CREATE TABLE checkpoints (job TEXT NOT NULL, step INTEGER NOT NULL, attempt INTEGER NOT NULL,
                              path TEXT NOT NULL, PRIMARY KEY (job, path));
    CREATE TABLE points (job TEXT NOT NULL, idx INTEGER NOT NULL, attempt INTEGER NOT NULL,
                         step INTEGER NOT NULL, at REAL NOT NULL, body BLOB NOT NULL,
                         PRIMARY KEY (job, idx));
    """,
    """
    CREATE TABLE removed (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE)
    """,
    """
    CREATE TABLE undrained (node TEXT PRIMARY KEY, number INTEGER NOT NULL)
    """,
    """
    ALTER TABLE jobs ADD COLUMN life INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE removed ADD COLUMN life INTEGER NOT NULL DEFAULT 0
    """,
    """
    DROP TABLE checkpoints;
    CREATE TABLE places (job TEXT NOT NULL, attempt INTEGER NOT NULL, body BLOB NOT NULL,
                         PRIMARY KEY (job, attempt))
    """,
    """
    DROP TABLE undrained;
    CREATE TABLE drained (daemon TEXT PRIMARY KEY, incarnation TEXT NOT NULL)
    """,
    """
    CREATE TABLE clock (one INTEGER PRIMARY KEY CHECK (one = 1), wall REAL NOT NULL);
    INSERT INTO clock VALUES (1, 0.0)
    """,
    """
    CREATE TABLE journal (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL,
                          number INTEGER NOT NULL);
    INSERT INTO journal VALUES (1, lower(hex(randomblob(8))), 0);
    CREATE TABLE starts (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
                         attempts INTEGER NOT NULL)
    """,
    """
    CREATE TABLE uses (seq INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL,
                       life INTEGER NOT NULL, attempt INTEGER NOT NULL, owner TEXT NOT NULL,
                       name TEXT NOT NULL, device_type TEXT NOT NULL, devices INTEGER NOT NULL,
                       started_at REAL NOT NULL, ran_s REAL NOT NULL,
                       UNIQUE (job, life, attempt))
    """,
    """
    ALTER TABLE uses ADD COLUMN queue TEXT NOT NULL DEFAULT ''
    """,
)
"""SCHEMA[v] leads from version v to v + 1. What has been released is never edited: add another."""

Places: TypeAlias = tuple[Assignment, ...]
Change = Save | Remove | SaveEpoch | SaveClock | SaveDrain | SaveJournal | SaveUse


@dataclass(frozen=True)
class Point:
    """Metrics of one step, as they are kept. index: counts the points of a job from 0, those that
    are left out as well.
    """

    index: int
    attempt: int
    step: int
    at: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class Loaded:
    """Everything that a scheduler reads from the store at its start.

    jobs: in the order they came. epoch: the last one taken. removed: ids and lives of jobs that
    were forgotten, the last MAX_REMOVED of them. drained: see fleet.py. wall: the time that it was
    believed to be, in seconds since the epoch; 0: not known.
    """

    jobs: tuple[JobRecord, ...]
    epoch: int
    removed: tuple[tuple[str, int], ...] = ()
    drained: tuple[tuple[str, int], ...] = ()
    wall: float = 0.0
    journal: Journal = field(default_factory=Journal)


class SqliteStore:
    """The store in a file. Every method may raise StoreError.

    Raises ConfigError (exit 78) if the file is of a newer version, of another program, or held by
    another scheduler, and StoreError (exit 70) if it is damaged or cannot be written.
    """

    def __init__(self, path: Path, lock_timeout_s: float = 2.0) -> None:
        self.path = path
        with self._translating("open"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.exists() and 0 < path.stat().st_size < HEADER_NBYTES:
                raise self._damaged("cut off in its header")  # SQLite would begin an empty one
            self._connection = _connect(path, lock_timeout_s)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        with self._translating("close"):
            self._connection.close()

    # -- opening -----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        run = self._connection.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA auto_vacuum = INCREMENTAL")  # of a file that is yet empty
        version, application = self._pragma("user_version"), self._pragma("application_id")
        is_new = not version and not run("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        if not is_new and application != APPLICATION_ID:
            raise ConfigError(
                f"{self.path} is a database of another program; name another state directory"
            )
        if version > len(SCHEMA):
            raise ConfigError(
                f"{self.path} has version {version}, but this scheduler knows versions up to "
                f"{len(SCHEMA)}: start the newer scheduler that wrote it, or restore the copy of "
                "the state directory made before the upgrade"
            )
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run(f"PRAGMA journal_size_limit = {MAX_WAL_NBYTES}")
        self._check_health()
        self._migrate(version)
        self._compact_whole()
        self._num_points = int(run("SELECT count(*) FROM points").fetchone()[0])

    def _check_health(self) -> None:
        found = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != ("ok",):
            said = str(found[0]) if found else "no answer"
            raise self._damaged(" ".join(said.split()))

    def _migrate(self, version: int) -> None:
        """One transaction a version, so that a crash leaves one version or the next."""
        for number in range(version, len(SCHEMA)):
            with self._transaction() as run:
                for statement in SCHEMA[number].split(";"):
                    if statement.strip():
                        run(statement)
                run(f"PRAGMA application_id = {APPLICATION_ID}")
                run(f"PRAGMA user_version = {number + 1}")

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    # -- staying small -----------------------------------------------------------------------------

    def _free_nbytes(self) -> int:
        return self._pragma("freelist_count") * self._pragma("page_size")

    def _compact_whole(self) -> None:
        """Write the file anew at the start, when there is time, if much of it is of no use."""
        if self._free_nbytes() > MAX_FREE_NBYTES:
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _compact(self) -> None:
        """Give the disk some of the pages that removed jobs have left free."""
        if self._free_nbytes() > MAX_FREE_NBYTES:
            # A script, for one call of `execute` frees one page only.
            self._connection.executescript(f"PRAGMA incremental_vacuum({STEP_PAGES})")

    def _thin_job(self, run: Execute, job_id: str, most: int) -> int:
        """Keep every second, fourth, ... of a job's points, and the last, if it has more than
        `most`: until about half as many are left, so that it need not be done again soon. Returns
        how many went.
        """
        count = "SELECT count(*), max(idx) FROM points WHERE job = ?"
        before, last = run(count, (job_id,)).fetchone()
        number, every = before, 1
        while before > most and number > most // 2 + 2:  # each second and the last
            every *= 2
            others = "DELETE FROM points WHERE job = ? AND idx % ? != 0 AND idx != ?"
            number -= run(others, (job_id, every, last)).rowcount
        self._num_points -= before - number
        return int(before - number)

    def _thin(self, run: Execute) -> None:
        """Thins the curves of the jobs that have most points, if there are too many in all."""
        if self._num_points <= MAX_POINTS:
            return
        self._num_points = int(run("SELECT count(*) FROM points").fetchone()[0])
        most = "SELECT job, count(*) FROM points GROUP BY job ORDER BY 2 DESC, job LIMIT 1"
        while self._num_points > MAX_POINTS:
            job_id, number = run(most).fetchone()
            if not self._thin_job(run, job_id, number - 1):
                return  # a few points of each job

    # -- jobs --------------------------------------------------------------------------------------

    def load(self) -> Loaded:
        with self._translating("read"):
            run = self._connection.execute
            rows = run("SELECT id, body FROM jobs ORDER BY seq").fetchall()
            epoch = run("SELECT last FROM epochs").fetchone()
            if epoch is None:
                raise self._damaged("the table of epochs is empty")
            removed = run("SELECT id, life FROM removed ORDER BY seq").fetchall()
            jobs = tuple(self._decode(*row) for row in rows)
            drained = run("SELECT daemon, incarnation FROM drained ORDER BY daemon").fetchall()
            return Loaded(
                jobs,
                int(epoch[0]),
                tuple((job_id, int(life)) for job_id, life in removed),
                tuple((daemon, int(incarnation)) for daemon, incarnation in drained),
                float(run("SELECT max(wall) FROM clock").fetchone()[0] or 0.0),
                self._journal(),
            )

    def _journal(self) -> Journal:
        found = self._connection.execute("SELECT id, number FROM journal").fetchone()
        if found is None:
            raise self._damaged("the table of the journal is empty")
        starts = self._connection.execute("SELECT id, attempts FROM starts ORDER BY seq")
        return opened(found[0], int(found[1]), {name: int(count) for name, count in starts})

    def _decode(self, job_id: str, body: bytes) -> JobRecord:
        try:
            return decode_record(body)
        except msgspec.MsgspecError as error:
            raise self._damaged(f"job {job_id}: {error}") from None

    def write(self, changes: Sequence[Change]) -> None:
        """Makes them durable, all or none."""
        with self._translating("write"), self._transaction() as run:
            for change in changes:
                match change:
                    case Save(record=record):
                        _save(run, record)
                    case Remove(job_id=job_id, life=life):
                        _remove(run, job_id, life)
                    case SaveEpoch(epoch=epoch):
                        run("UPDATE epochs SET last = max(last, ?)", (epoch,))
                    case SaveClock(wall=wall):
                        run("UPDATE clock SET wall = ?", (wall,))
                    case SaveJournal():
                        _save_journal(run, change)
                    case SaveUse(use=use):
                        _save_use(run, use)
                    case SaveDrain(daemon=daemon, incarnation=incarnation):
                        run("DELETE FROM drained WHERE daemon = ?", (daemon,))
                        if incarnation:  # as text: it has 64 bits, SQLite's numbers 63
                            row = (daemon, str(incarnation))
                            run("INSERT INTO drained VALUES (?, ?)", row)
            failpoint("journal.write")
        if any(isinstance(change, Remove) for change in changes):
            with self._translating("write"):
                self._compact()

    def places(self, job_id: str, attempt: int) -> tuple[Assignment, ...]:
        """Return the devices of an attempt of a job; () if they are not known any more."""
        select = "SELECT body FROM places WHERE job = ? AND attempt = ?"
        with self._translating("read"):
            found = self._connection.execute(select, (job_id, attempt)).fetchone()
        return () if found is None else msgspec.msgpack.decode(found[0], type=Places)

    def uses(self, since: float = 0.0, owner: str | None = None) -> list[Use]:
        """The last MAX_USES attempts that were not over before `since`. owner: None: all owners."""
        select = """SELECT job, life, attempt, owner, name, device_type, devices, started_at, ran_s,
                           queue
                    FROM uses WHERE started_at + ran_s >= ? AND (? IS NULL OR owner = ?)
                    ORDER BY seq"""
        with self._translating("read"):
            rows = self._connection.execute(select, (since, owner, owner)).fetchall()
        return [Use(*row) for row in rows]

    # -- tokens ------------------------------------------------------------------------------------

    def tokens(self) -> list[TokenRecord]:
        select = """SELECT name, role, digest, created_at, expires_at, revoked FROM tokens
                    ORDER BY name, created_at DESC, digest"""
        with self._translating("read"):
            rows = self._connection.execute(select).fetchall()
        return [
            TokenRecord(name, role, digest, created_at, expires_at, bool(revoked))
            for name, role, digest, created_at, expires_at, revoked in rows
        ]

    def put_tokens(self, tokens: Iterable[TokenRecord]) -> None:
        """Adds them, or replaces those with the same digest. Durable."""
        put = "INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, ?, ?, ?)"
        with self._translating("write"), self._transaction() as run:
            for t in tokens:
                run(put, (t.digest, t.name, t.role, t.created_at, t.expires_at, t.revoked))

    def drop_tokens(self, tokens: Iterable[TokenRecord]) -> None:
        with self._translating("write"), self._transaction() as run:
            for token in tokens:
                run("DELETE FROM tokens WHERE digest = ?", (token.digest,))

    # -- metrics -----------------------------------------------------------------------------------

    def add_points(
        self, job_id: str, points: Sequence[tuple[int, CurvePoint]], life: int = 0
    ) -> list[Point]:
        """Add points, (attempt, the numbers of one step) each. Returns those that are new, with
        their indices: a daemon whose line broke tells its points again. None of a job of another
        life.
        """
        with self._translating("write"), self._unsynced(), self._transaction() as run:
            known = run("SELECT 1 FROM jobs WHERE id = ? AND life = ?", (job_id, life))
            if known.fetchone() is None:
                return []  # it was removed meanwhile
            newest = """SELECT idx, attempt, step FROM points WHERE job = ?
                        ORDER BY idx DESC LIMIT 1"""
            added = _new_points(run(newest, (job_id,)).fetchone(), points)
            for p in added:
                body = msgspec.msgpack.encode(dict(p.values))
                row = (job_id, p.index, p.attempt, p.step, p.at, body)
                run("INSERT INTO points VALUES (?, ?, ?, ?, ?, ?)", row)
            self._num_points += len(added)
            if added and _is_time_to_thin(added[0].index, added[-1].index):
                self._thin_job(run, job_id, MAX_POINTS_PER_JOB)
            self._thin(run)
        return added

    def points(self, job_id: str, start: int = 0, limit: int = 1000) -> list[Point]:
        """Those with an index of at least `start`, as far as they are kept."""
        select = """SELECT idx, attempt, step, at, body FROM points WHERE job = ? AND idx >= ?
                    ORDER BY idx LIMIT ?"""
        with self._translating("read"):
            rows = self._connection.execute(select, (job_id, start, limit)).fetchall()
            return [
                Point(index, attempt, step, at, _decode_values(body))
                for index, attempt, step, at, body in rows
            ]

    # -- failing -----------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[Execute]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection.execute
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _unsynced(self) -> Iterator[None]:
        self._connection.execute("PRAGMA synchronous = NORMAL")
        try:
            yield
        finally:
            self._connection.execute("PRAGMA synchronous = FULL")

    @contextmanager
    def _translating(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._translated(error, what) from None
        except msgspec.MsgspecError as error:
            raise self._damaged(str(error)) from None
        except OSError as error:
            raise StoreError(f"cannot {what} {self.path}: {error.strerror}") from None

    def _translated(self, error: sqlite3.DatabaseError, what: str) -> StoreError | ConfigError:
        said = str(error)
        name = getattr(error, "sqlite_errorname", "")  # Python 3.11; before, the text must do
        if name in ("SQLITE_BUSY", "SQLITE_LOCKED") or "is locked" in said:
            return ConfigError(
                f"{self.path} is in use by another scheduler: stop that one, or name another "
                "state directory"
            )
        if type(error) is sqlite3.DatabaseError or "malformed" in said:
            return self._damaged(said)
        if "full" in said:
            return StoreError(
                f"cannot {what} {self.path}: its disk is full; free some space and nothing is lost"
            )
        return StoreError(f"cannot {what} {self.path}: {said}")

    def _damaged(self, how: str) -> StoreError:
        return StoreError(
            f"{self.path} is damaged ({how}): restore it from a copy, or rescue what is left with "
            f"`sqlite3 {self.path} .recover`, or move it away to begin with an empty one"
        )


def encode_record(record: JobRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode_record(body: bytes) -> JobRecord:
    """Raises msgspec.MsgspecError. Fields of later versions are passed over."""
    return msgspec.msgpack.decode(body, type=JobRecord)


def _new_points(
    last: tuple[int, int, int] | None, points: Sequence[tuple[int, CurvePoint]]
) -> list[Point]:
    """Those after `last` (index, attempt, step), numbered."""
    index, *seen = last if last is not None else (-1, 0, -1)
    found = []
    for attempt, point in points:
        if [attempt, point.step] <= seen:
            continue
        index = min(index + 1 + point.left_out, MAX_INDEX)
        seen = [attempt, point.step]
        found.append(Point(index, attempt, point.step, point.at, point.values))
    return found


def _is_time_to_thin(first: int, last: int) -> bool:
    """Counting points takes a while: not after each that was added."""
    every = max(1, MAX_POINTS_PER_JOB // 20)
    return last >= MAX_POINTS_PER_JOB and last // every > (first - 1) // every


def _decode_values(body: bytes) -> dict[str, float]:
    return msgspec.msgpack.decode(body, type=dict[str, float])


def _connect(path: Path, timeout_s: float) -> sqlite3.Connection:
    if not path.exists():  # nobody else may read it, not even for a moment
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    return sqlite3.connect(path, timeout_s, isolation_level=None, check_same_thread=False)


def _save(run: Execute, record: JobRecord) -> None:
    insert = """INSERT INTO jobs (id, state, body, life) VALUES (?, ?, ?, ?)
                ON CONFLICT (id) DO UPDATE
                SET state = excluded.state, body = excluded.body, life = excluded.life"""
    run(insert, (record.id, record.state.value, encode_record(record), record.life))
    if record.assignments:
        put = "INSERT OR IGNORE INTO places VALUES (?, ?, ?)"
        run(put, (record.id, record.attempt, msgspec.msgpack.encode(record.assignments)))
        oldest = "DELETE FROM places WHERE job = ? AND attempt <= ?"
        run(oldest, (record.id, record.attempt - MAX_ATTEMPTS_PER_JOB))


def _save_journal(run: Execute, change: SaveJournal) -> None:
    run("UPDATE journal SET number = ?", (change.number,))
    put = """INSERT INTO starts (id, attempts) VALUES (?, ?)
             ON CONFLICT (id) DO UPDATE SET attempts = excluded.attempts"""
    run(put, (change.start, change.attempts))
    oldest = "DELETE FROM starts WHERE seq <= (SELECT max(seq) FROM starts) - ?"
    run(oldest, (MAX_STARTS,))


def _save_use(run: Execute, use: Use) -> None:
    put = """INSERT OR REPLACE INTO uses
             (job, life, attempt, owner, name, device_type, devices, started_at, ran_s, queue)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
    run(put, astuple(use))
    run("DELETE FROM uses WHERE seq <= (SELECT max(seq) FROM uses) - ?", (MAX_USES,))


def _remove(run: Execute, job_id: str, life: int) -> None:
    for table, key in (("jobs", "id"), ("points", "job"), ("places", "job")):
        run(f"DELETE FROM {table} WHERE {key} = ?", (job_id,))
    run("INSERT OR REPLACE INTO removed (id, life) VALUES (?, ?)", (job_id, life))
    oldest = "DELETE FROM removed WHERE seq <= (SELECT max(seq) FROM removed) - ?"
    run(oldest, (MAX_REMOVED,))
