"""The store survives: crashes, torn files, full disks, other programs' files."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from oneflow.core.errors import ConfigError, OneFlowError, StoreError
from oneflow.scheduler.jobs import store as store_module
from oneflow.scheduler.jobs.events import (
    CurvePoint,
    Remove,
    Save,
    SaveDrain,
    SaveEpoch,
    SaveJournal,
    SaveUse,
)
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobSpec, JobState, Use
from oneflow.scheduler.jobs.store import SqliteStore, decode_record, encode_record
from oneflow.scheduler.jobs.tokens import create

SPEC = JobSpec(argv=("python", "x.py"), env={"A": "b"}, restart_on=("3",))


def record(name: str = "j1", **fields: object) -> JobRecord:
    return replace(JobRecord(name, SPEC), **fields)  # type: ignore[arg-type]


def save(store: SqliteStore, *records: JobRecord) -> None:
    store.write([Save(record) for record in records])


def reopened(store: SqliteStore) -> SqliteStore:
    """The same store over the same file, closed and opened anew."""
    store.close()
    vars(store).update(vars(SqliteStore(store.path)))
    return store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cluster.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(path)
    yield opened
    opened.close()


def by_hand(path: Path, statement: str, *values: object) -> object:
    """Changes or asks a file that no store holds."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchone()


def test_everything_comes_back(store: SqliteStore, path: Path) -> None:
    full = record(
        state=JobState.RUNNING,
        assignments=(Assignment(0, "n0/cpu:0", "n0", "cpu:0"),),
        metrics={"loss": 0.25},
        job_key="secret",
        spec=replace(SPEC, kind=JobKind.GRAPH),
        last_step=2**60,
    )
    store.write([Save(full), Save(record("j2")), SaveEpoch(41)])
    store.write([SaveEpoch(40)])  # never goes back
    store = reopened(store)
    loaded = store.load()
    assert loaded.jobs == (full, record("j2")) and loaded.epoch == 41
    assert path.stat().st_mode & 0o777 == 0o600


def test_jobs_keep_the_order_in_which_they_came(store: SqliteStore) -> None:
    for name in ("z", "a", "m"):
        save(store, record(name))
    save(store, record("z", state=JobState.RUNNING))
    store.write([Remove("a")])
    assert [job.id for job in reopened(store).load().jobs] == ["z", "m"]


def test_metrics_that_are_not_numbers_come_back(store: SqliteStore) -> None:
    save(store, record(metrics={"loss": float("nan"), "norm": float("inf")}))
    assert repr(store.load().jobs[0].metrics) == "{'loss': nan, 'norm': inf}"


def test_a_life_that_changed_comes_back(store: SqliteStore) -> None:
    save(store, record())
    save(store, record(life=2))
    assert [job.life for job in reopened(store).load().jobs] == [2]
    store.add_points("j1", curve([1]), life=2)
    assert len(store.points("j1")) == 1


def test_a_journal_knows_the_attempts_of_each_start(store: SqliteStore) -> None:
    first = store.load().journal
    store.write([first.begin(), first.begin()])
    store = reopened(store)
    second = store.load().journal
    assert (second.id, second.starts, second.number) == (first.id, {first.start: 2}, 0)
    assert second.start != first.start and second.next_number > 0
    store.write([SaveJournal(second.next_number, "lost", 3)])
    third = reopened(store).load().journal
    assert third.starts == {first.start: 2, "lost": 3}
    assert third.next_number > third.number == second.next_number


def test_two_journals_are_told_apart(tmp_path: Path) -> None:
    with (
        closing(SqliteStore(tmp_path / "a.db")) as one,
        closing(SqliteStore(tmp_path / "b.db")) as b,
    ):
        assert one.load().journal.id != b.load().journal.id


def test_drains_survive_until_they_are_undone(store: SqliteStore) -> None:
    store.write([SaveDrain("n1", 7), SaveDrain("n0", 2**64 - 1), SaveDrain("n1", 9)])
    store = reopened(store)
    assert store.load().drained == (("n0", 2**64 - 1), ("n1", 9))
    store.write([SaveDrain("n0", 0)])
    assert store.load().drained == (("n1", 9),)


def test_changes_are_made_all_or_none(store: SqliteStore) -> None:
    bad = record("j2", owner=5)
    broken = replace(bad, id=None)  # type: ignore[arg-type]
    with pytest.raises(StoreError):
        store.write([Save(record()), SaveEpoch(9), Save(broken)])
    loaded = store.load()
    assert (loaded.jobs, loaded.epoch) == ((), 0)


def test_unknown_fields_of_a_later_version_are_passed_over() -> None:
    import msgspec

    body = msgspec.msgpack.decode(encode_record(record()))
    assert decode_record(msgspec.msgpack.encode({**body, "later": 1})) == record()


# ---- tokens, checkpoints, metrics ----------------------------------------------------------------


def test_tokens_are_kept_replaced_and_dropped(store: SqliteStore) -> None:
    first, _ = create("a", "admin", 100.0)
    second, _ = create("b", "view", 101.0, lifetime_s=5.0)
    store.put_tokens([first, second])
    store.put_tokens([replace(first, revoked=True)])
    store = reopened(store)
    assert store.tokens() == [replace(first, revoked=True), second]
    store.drop_tokens([first])
    assert store.tokens() == [second]


def test_places_of_earlier_attempts_are_remembered(store: SqliteStore) -> None:
    def ran_on(node: str, attempt: int) -> JobRecord:
        places = (Assignment(0, f"{node}/cpu:0", node, "cpu:0", "/state/jobs"),)
        return record(attempt=attempt, assignments=places)

    for attempt, node in enumerate(("n1", "n2", "n3"), start=1):
        save(store, ran_on(node, attempt))
        save(store, replace(ran_on(node, attempt), last_step=5))
    save(store, record(attempt=3))  # restarted: it is nowhere now
    store = reopened(store)
    assert [store.places("j1", n) for n in (1, 2, 3)] == [
        ran_on(f"n{n}", n).assignments for n in (1, 2, 3)
    ]
    assert store.places("j1", 4) == store.places("j2", 1) == ()


def curve(steps: Iterable[int], attempt: int = 1) -> list[tuple[int, CurvePoint]]:
    return [(attempt, CurvePoint(step, 0.5, {"loss": float(step)})) for step in steps]


def test_points_are_kept_once_and_those_left_out_are_counted(store: SqliteStore) -> None:
    save(store, record())
    store.add_points("j1", curve([1, 2, 3]))
    assert [p.index for p in store.add_points("j1", curve([2, 3, 4]))] == [3]  # told again
    gap = CurvePoint(10, 0.5, {"loss": 10.0}, left_out=5)
    assert [p.index for p in store.add_points("j1", [(1, gap)])] == [9]
    assert [p.index for p in store.add_points("j1", curve([3, 4], attempt=2))] == [10, 11]
    assert store.add_points("j1", curve([99])) == []
    steps = [(p.attempt, p.step) for p in store.points("j1")]
    assert steps == [(1, 1), (1, 2), (1, 3), (1, 4), (1, 10), (2, 3), (2, 4)]


def test_metric_points_are_numbered_and_bounded(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_POINTS_PER_JOB", 10)
    for name in ("j1", "j2"):
        save(store, record(name))
    for step in range(0, 30, 3):
        store.add_points("j1", curve(range(step, step + 3)))
    store.add_points("j2", curve([0]))
    store = reopened(store)
    points = store.points("j1")
    indices = [0, 8, 16, 24, 29]  # all of it, and the last
    assert [point.index for point in points] == indices
    assert [point.values["loss"] for point in points] == [float(i) for i in indices]
    assert [point.index for point in store.points("j1", 20, 1)] == [24]
    store.write([Remove("j1")])
    assert store.points("j1") == [] and len(store.points("j2")) == 1


# ---- damage --------------------------------------------------------------------------------------


def test_torn_log_loses_whole_transactions_from_its_end_only(
    store: SqliteStore, path: Path, tmp_path: Path
) -> None:
    """Cuts as a power cut does at any moment: a prefix of the written bytes is left."""
    states = []
    for number in range(8):
        store.write([Save(record(f"j{number}")), SaveEpoch(number + 1)])
        states.append(number + 1)
    log = path.with_name(path.name + "-wal").read_bytes()
    assert len(log) > 8 * 4096
    seen = set()
    for size in [*range(0, len(log), 1021), len(log)]:
        copy = tmp_path / f"torn{size}" / "cluster.db"
        copy.parent.mkdir()
        shutil.copy(path, copy)
        copy.with_name(copy.name + "-wal").write_bytes(log[:size])
        torn = SqliteStore(copy)
        loaded = torn.load()
        assert [job.id for job in loaded.jobs] == [f"j{i}" for i in range(len(loaded.jobs))]
        assert loaded.epoch == len(loaded.jobs)
        seen.add(loaded.epoch)
        save(torn, record("after"))
        torn.close()
        shutil.rmtree(copy.parent)
    assert len(seen) > 5 and 8 in seen


def test_flipped_bits_are_an_error_that_says_what_to_do(path: Path) -> None:
    store = SqliteStore(path)
    for number in range(200):
        save(store, record(f"j{number}", cause="x" * 200))
    store.close()
    data = bytearray(path.read_bytes())
    for offset in range(4096, len(data), 512):
        data[offset] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"damaged.*recover.*move it away") as caught:
        SqliteStore(path).load()
    assert caught.value.exit_code == 70


@pytest.mark.parametrize("size", [1, 17, 100, 5000])
def test_any_truncated_file_gives_a_store_or_a_declared_error(path: Path, size: int) -> None:
    store = SqliteStore(path)
    save(store, record())
    store.close()
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(OneFlowError):
        SqliteStore(path).load()


def test_record_that_makes_no_sense_is_damage(path: Path) -> None:
    store = SqliteStore(path)
    save(store, record())
    store.close()
    by_hand(path, "UPDATE jobs SET body = ?", b"\x81\xa2id\x05")
    with pytest.raises(StoreError, match=r"damaged .job j1"):
        SqliteStore(path).load()


def test_newer_version_is_refused_with_what_to_do(path: Path) -> None:
    SqliteStore(path).close()
    by_hand(path, "PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match=r"version 99.*newer scheduler") as caught:
        SqliteStore(path)
    assert caught.value.exit_code == 78


def test_database_of_another_program_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    by_hand(path, "CREATE TABLE mine (x)")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_second_scheduler_on_the_same_file_is_refused(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(ConfigError, match="in use by another scheduler"):
        SqliteStore(path, lock_timeout_s=0.05)
    store.close()
    SqliteStore(path).close()


def test_older_version_is_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(path)
    save(store, record())
    store.close()
    more = (*store_module.SCHEMA, "CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('x');")
    monkeypatch.setattr(store_module, "SCHEMA", more)
    store = SqliteStore(path)
    assert store.load().jobs == (record(),)
    store.close()
    assert by_hand(path, "PRAGMA user_version") == (len(more),)
    assert by_hand(path, "SELECT text FROM notes") == ("x",)


def test_migration_that_fails_leaves_the_version_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqliteStore(path).close()
    released = store_module.SCHEMA
    monkeypatch.setattr(store_module, "SCHEMA", (*released, "CREATE TABLE notes (x); NONSENSE;"))
    with pytest.raises(StoreError):
        SqliteStore(path)
    monkeypatch.setattr(store_module, "SCHEMA", released)
    SqliteStore(path).close()


def test_full_disk_is_an_error_and_nothing_is_lost(store: SqliteStore) -> None:
    save(store, record())
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="disk is full"):
        for number in range(100):
            save(store, record(f"more{number}", cause="x" * 5000))
    kept = store.load().jobs
    store._connection.execute("PRAGMA max_page_count = 1000000")
    save(store, record("last"))
    assert reopened(store).load().jobs == (*kept, record("last"))


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open"):
        SqliteStore(tmp_path / "file" / "cluster.db")


def test_remove_forgets_all_of_a_job(store: SqliteStore) -> None:
    save(store, record(attempt=1, assignments=(Assignment(0, "n/cpu:0", "n", "cpu:0"),)))
    store.add_points("j1", curve([1]))
    store.write([Remove("j1")])
    assert (store.load().jobs, store.places("j1", 1), store.points("j1")) == ((), (), [])


# ---- staying small -------------------------------------------------------------------------------


def test_points_of_an_earlier_job_of_that_id_come_too_late(store: SqliteStore) -> None:
    save(store, record())
    store.write([Remove("j1"), Save(record(life=1))])
    assert store.add_points("j1", curve([50])) == []
    assert [p.index for p in store.add_points("j1", curve([1]), life=1)] == [0]
    store = reopened(store)
    loaded = store.load()
    assert (loaded.jobs[0].life, loaded.removed) == (1, (("j1", 0),))


def test_removed_jobs_are_remembered_but_not_for_ever(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_REMOVED", 3)
    for name in ("a", "b", "c", "a", "d"):
        save(store, record(name))
        store.write([Remove(name)])
    assert store.load().removed == (("c", 0), ("a", 0), ("d", 0))


def test_the_file_shrinks_when_jobs_are_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_FREE_NBYTES", 100_000)
    store = SqliteStore(path)
    jobs = [record(f"j{n}", cause="x" * 20_000) for n in range(40)]
    store.write([Save(job) for job in jobs])
    large = store._pragma("page_count")
    store.write([Remove(job.id) for job in jobs])
    store.write([Remove("one more look")])
    assert store._pragma("page_count") < large / 2
    store.close()
    SqliteStore(path).close()
    assert path.stat().st_size < 200_000


def test_an_old_file_is_written_anew_at_the_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(path)
    store.write([Save(record(f"j{n}", cause="x" * 20_000)) for n in range(40)])
    store.write([Remove(f"j{n}") for n in range(39)])
    store.close()
    large = path.stat().st_size
    monkeypatch.setattr(store_module, "MAX_FREE_NBYTES", 100_000)
    store = SqliteStore(path)
    assert path.stat().st_size < large / 4
    assert [job.id for job in store.load().jobs] == ["j39"]
    store.close()


def test_points_of_all_jobs_together_are_bounded(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_POINTS", 50)
    for name in ("few", "many"):
        save(store, record(name))
    store.add_points("few", curve(range(10)))
    added = store.add_points("many", curve(range(60)))
    assert len(store.points("few")) == 10
    kept = [point.index for point in store.points("many")]
    assert kept == [p.index for p in added if p.index % 2 == 0] + [59]  # every second, and the last
    assert store.add_points("many", curve([60]))[0].index == 60


def test_what_was_used_outlives_its_job(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Use("j1", 0, 1, "ada", "digits", "cuda", 8, 1000.0, 60.5)
    other = replace(first, job_id="j2", owner="bob", started_at=2000.0)
    save(store, record())
    store.write([SaveUse(first), SaveUse(other), SaveUse(first)])
    store.write([Remove("j1")])
    assert sorted(reopened(store).uses(), key=lambda use: use.job_id) == [first, other]
    assert store.uses(owner="ada") == [first]
    assert store.uses(since=1060.6) == [other]
    monkeypatch.setattr(store_module, "MAX_USES", 1)
    store.write([SaveUse(replace(first, attempt=2))])
    assert [use.attempt for use in store.uses()] == [2]
