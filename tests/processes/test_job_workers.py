"""Workers of jobs as real processes: losses, checkpoints, stops, kills, other numbers of ranks."""

from __future__ import annotations

import hashlib
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.jobs.plans import compile_plan
from oneflow.jobs.saving import saved_steps
from oneflow.services.kernel_sums import read_kernels
from tests.support.simulated.worker_peer import INFERENCE, Attempt, pb

EXAMPLE = Path(__file__).parents[2] / "examples" / "jobs" / "digits_job.py"
STEPS = 120
SLOWLY = {"ONEFLOW_TESTING": "1", "ONEFLOW_FAILPOINTS": "worker.step=sleep:0.03"}
"""Environment of jobs that must not end before they are disturbed."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Job files by their work."""
    folder = tmp_path_factory.mktemp("files")
    train, infer = folder / "train.job", folder / "infer.job"
    before = sys.argv
    try:
        for path, extra in ((train, ["--steps", str(STEPS)]), (infer, ["--infer"])):
            flags = ["--checkpoint-every", "10", *extra]
            sys.argv = [str(EXAMPLE), str(path), *flags]
            runpy.run_path(str(EXAMPLE), run_name="__main__")
    finally:
        sys.argv = before
    return {"train": train, "infer": infer}


class Undisturbed(dict[int, Attempt]):
    """The whole job on so many ranks, run when it is first asked for."""

    def __init__(self, job_file: Path, folder: Path) -> None:
        self._job_file, self._folder = job_file, folder

    def __missing__(self, num_ranks: int) -> Attempt:
        attempt = Attempt(self._job_file, self._folder / str(num_ranks), num_ranks)
        self[num_ranks] = attempt.succeeds()
        return self[num_ranks]


@pytest.fixture(scope="module")
def undisturbed(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(files["train"], tmp_path_factory.mktemp("undisturbed"))


def state_of(attempt: Attempt) -> str:
    """SHA-256 of the final variables, optimizer state among them."""
    path = attempt.job_dir / "outputs" / "variables.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def values(attempt: Attempt) -> Any:
    return np.array([float.fromhex(loss) for _, loss in attempt.curve])


@pytest.mark.parametrize("more", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_losses_are_those_of_the_graph_on_any_number_of_ranks(
    files: dict[str, Path], undisturbed: Undisturbed, more: int
) -> None:
    example = runpy.run_path(str(EXAMPLE))
    flow.manual_seed(7)
    images, labels = example["read_digits"]()
    batches = flow.jobs.data.arrays(x=images, y=labels).shuffle(7).batch(64).repeat().batches
    graph = example["Train"](example["make_model"](), 0.2, STEPS)
    from oneflow.jobs.order import Cursor

    cursor, expected = Cursor(), []
    for _ in range(STEPS):
        rows = batches.rows(cursor, 0, 64)
        found = graph(flow.tensor(images[rows]), flow.tensor(labels[rows]))
        expected.append(float(found["loss"].numpy()))
        cursor = batches.after(cursor)
    assert values(undisturbed[1]).tolist() == expected
    np.testing.assert_allclose(values(undisturbed[more]), expected, rtol=1e-4)
    assert expected[-1] < 0.5 * expected[0]


def test_what_a_job_leaves(undisturbed: Undisturbed) -> None:
    for attempt in (undisturbed[1], undisturbed[2]):
        assert [step for step, _ in attempt.curve] == list(range(1, STEPS + 1))
        names = sorted(os.listdir(attempt.job_dir / "outputs"))
        assert names == [
            "accuracy.safetensors", "loss.safetensors", "metrics.jsonl", "variables.safetensors",
        ]  # fmt: skip
        folder = attempt.job_dir / "checkpoints"
        assert (folder / "last_checkpoint").read_text() == f"step-{STEPS}\n"
        assert len(saved_steps(folder)) == 2  # two are kept
        last = [p for p in attempt.workers[0].progress if p.metrics][-1]
        assert (last.step, last.total_steps) == (STEPS, STEPS)
        assert set(last.metrics) == {"loss", "accuracy"}
        assert f"step-{STEPS}" in {Path(p.checkpoint).name for p in attempt.workers[0].progress}
        assert all(w.failed is None for w in attempt.workers)


def test_a_checkpoint_is_one_that_load_reads(undisturbed: Undisturbed) -> None:
    found = flow.load(undisturbed[2].job_dir / "checkpoints" / f"step-{STEPS}")
    assert (found["format"], found["step"]) == ("oneflow job state", STEPS)
    assert found["cursor"] == {"epoch": 4, "position": 8 * 64}
    assert found["variables"]["model.0.weight"].to_local().shape == (96, 64)


@pytest.mark.parametrize("num_ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_killed_rank_and_the_curve_goes_on_to_the_last_bit(
    files: dict[str, Path], undisturbed: Undisturbed, tmp_path: Path, num_ranks: int
) -> None:
    first = Attempt(files["train"], tmp_path, num_ranks, env=SLOWLY)
    checkpoint = first.until_checkpoint(20)
    first.workers[-1].process.send_signal(signal.SIGKILL)
    codes = first.wait()
    assert codes == [85] * (num_ranks - 1) + [-9]
    assert all(w.failed.reason == "PEER_LOST" for w in first.workers[:-1])
    second = Attempt(
        files["train"], tmp_path, num_ranks, number=2, resume_from=checkpoint.checkpoint
    ).succeeds()
    assert second.curve == undisturbed[num_ranks].curve
    assert state_of(second) == state_of(undisturbed[num_ranks])


@pytest.mark.parametrize(
    ("before", "after"), [(2, 1), (1, 4), pytest.param(4, 2, marks=pytest.mark.slow)]
)
def test_told_to_stop_and_resumed_on_another_number_of_ranks(
    files: dict[str, Path],
    undisturbed: Undisturbed,
    tmp_path: Path,
    before: int,
    after: int,
) -> None:
    first = Attempt(files["train"], tmp_path, before, steps=STEPS, env=SLOWLY)
    first.until_step(3)
    if before == 2:  # one rank hears of it, all of them stop
        first.workers[1].process.send_signal(signal.SIGTERM)
    else:
        first.workers[0].send(stop=True)
    codes = first.wait()
    assert codes == [143] * before, "\n".join(w.text() for w in first.workers)
    ends = {(w.failed.exit_code, w.failed.reason, w.failed.last_step) for w in first.workers}
    assert len(ends) == 1 and next(iter(ends))[:2] == (143, "PREEMPTED")
    step = next(iter(ends))[2]
    told = [p for p in first.workers[0].progress if p.checkpoint][-1]
    assert told.checkpoint_step == step and 3 <= step <= STEPS
    assert "Traceback" not in "".join(w.text() for w in first.workers)
    second = Attempt(
        files["train"], tmp_path, after, number=2, resume_from=told.checkpoint
    ).succeeds()
    np.testing.assert_allclose(values(second), values(undisturbed[1]), rtol=1e-4)


def test_a_plan_compiled_elsewhere_gives_the_same_bits(
    files: dict[str, Path], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    plan = tmp_path / "given.pb"
    plan.write_bytes(compile_plan(files["train"], 2, "cpu", ("a", "a")))
    found = Attempt(files["train"], tmp_path / "job", 2, plan_file=str(plan)).succeeds()
    assert found.curve == undisturbed[2].curve
    assert (undisturbed[2].job_dir / "plan.pb").exists()
    wrong = Attempt(files["train"], tmp_path / "wrong", 1, plan_file=str(plan))
    assert wrong.wait() == [70]
    assert "not one of this job file for 1 ranks" in wrong.workers[0].failed.cause


def test_a_damaged_checkpoint_gives_way_to_an_older_one(
    files: dict[str, Path], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    Attempt(files["train"], tmp_path, 1, steps=20).succeeds()
    folder = tmp_path / "checkpoints"
    shard = next((folder / "step-20").glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    path = str(folder / "step-20")
    second = Attempt(files["train"], tmp_path, 1, number=2, resume_from=path).succeeds()
    assert second.curve == undisturbed[1].curve and "step-20" in second.workers[0].text()


def test_going_on_from_the_last_step_leaves_the_same_files(
    files: dict[str, Path], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """An attempt that was killed after its last checkpoint, before its end."""
    env = {"ONEFLOW_TESTING": "1", "ONEFLOW_FAILPOINTS": "worker.outputs=kill"}
    assert Attempt(files["train"], tmp_path, 2, env=env).wait() == [-9, -9]
    path = str(tmp_path / "checkpoints" / f"step-{STEPS}")
    found = Attempt(files["train"], tmp_path, 2, number=2, resume_from=path).succeeds()
    assert [p.step for p in found.workers[0].progress] == [STEPS]
    whole = undisturbed[2].job_dir / "outputs"
    for file in whole.iterdir():
        assert (tmp_path / "outputs" / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_checkpoint_that_the_user_names_must_be_good(
    files: dict[str, Path], tmp_path: Path
) -> None:
    """Nothing older is taken, and nothing outside of the folders that jobs may use is read."""
    (tmp_path / "step-5").mkdir()
    for path, message in ((tmp_path / "step-5", "step-5"), (Path("/etc/step-5"), "DATA_ROOTS")):
        fields = {"resume_from": str(path), "spec_resume_from": str(path)}
        found = Attempt(files["train"], tmp_path / "job", 1, **fields)
        assert found.wait() == [83] and found.workers[0].failed.reason == "CHECKPOINT_INVALID"
        assert message in found.workers[0].failed.cause


def test_a_bad_file_ends_with_its_code(tmp_path: Path) -> None:
    bad = tmp_path / "bad.job"
    bad.write_bytes(b"PK" * 100)
    found = Attempt(bad, tmp_path / "job", 1)
    assert found.wait() == [65]
    assert found.workers[0].failed.cause.startswith("JobFileError: ")


def test_a_worker_without_a_daemon_ends(files: dict[str, Path], tmp_path: Path) -> None:
    found = Attempt(files["train"], tmp_path, 1)
    found.workers[0].hang_up()
    assert found.wait() == [143]


# ---- inference -----------------------------------------------------------------------------------


def ask(attempt: Attempt, number: int, x: Any, rank: int = 0, **fields: Any) -> None:
    tensor = {"name": "x", "dtype": x.dtype.name, "shape": x.shape, "data": x.tobytes(), **fields}
    attempt.workers[rank].send(infer=pb.Infer(request=number, inputs=[pb.Tensor(**tensor)]))


def answer(attempt: Attempt, number: int, rank: int = 0) -> Any:
    return (
        attempt.workers[rank]
        .wait_for(lambda m: m.WhichOneof("kind") == "infer" and m.infer.request == number)
        .infer
    )


def check_traced(job: Attempt, ask_all: Callable[[int], object]) -> None:
    """A trace of two steps of both ranks holds the kernels of the graph's two dense layers."""
    job.order_trace("start", 1000, trace="t1", ranks=[0, 1], steps=2)
    for number in range(2000, 2100):  # the ranks heed the order at a step, or when they rest
        ask_all(number)
        answer(job, number)
        if job.order_trace("look", number) == ["done", "done"]:
            break
    files = [job.job_dir / "outputs" / f"trace-rank{rank}.json.gz" for rank in range(2)]
    for file in files:
        sums, steps = read_kernels([file])
        linear = sums.rows["op"]["linear"]
        assert (steps, linear.calls) == (2, 4)
        assert {"model.0"} <= sums.rows["module"].keys()


def test_requests_are_answered_whatever_comes_between(
    files: dict[str, Path], tmp_path: Path
) -> None:
    with flow.jobs.load(files["infer"]) as file:
        v = {n: file.variables.read(n).astype(np.float64) for n in file.variables.entries}
    plan = tmp_path / "given.pb"
    plan.write_bytes(compile_plan(files["infer"], 2, "cpu"))
    job = Attempt(files["infer"], tmp_path, 2, kind=INFERENCE, plan_file=str(plan))
    rng = np.random.default_rng(0)
    asked = {}
    for worker in job.workers:  # which finds all of them when it goes on
        worker.process.send_signal(signal.SIGSTOP)
    for number in range(60):
        count = 200 if number == 7 else int(rng.integers(1, 5))
        asked[number] = rng.standard_normal((count, 64)).astype(np.float32)
        ask(job, number, asked[number], rank=number % 2)
    ask(job, 100, np.zeros((1, 63), np.float32))
    ask(job, 101, np.zeros((1, 64), np.float64))
    ask(job, 102, np.zeros((1, 64), np.float32), name="z")
    ask(job, 103, np.zeros((1, 64), np.float32), data=b"123")
    for worker in job.workers:
        worker.process.send_signal(signal.SIGCONT)
    for number, x in asked.items():
        (scores,) = answer(job, number, number % 2).outputs
        found = np.frombuffer(scores.data, np.float32).reshape(tuple(scores.shape))
        hidden = np.tanh(x @ v["model.0.weight"].T + v["model.0.bias"])
        expected = hidden @ v["model.3.weight"].T + v["model.3.bias"]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    for number, message in (
        (100, r"float32[1, 63]"),
        (101, "float64[1, 64]"),
        (102, "no input 'z'"),
        (103, "3 bytes are no"),
    ):
        assert message in answer(job, number).error
    shared = job.workers[0].progress[-1].step
    check_traced(job, lambda number: [ask(job, number, asked[0], rank) for rank in range(2)])
    for worker in job.workers:
        worker.send(stop=True)
    assert job.wait() == [143, 143]
    assert job.workers[0].progress[-1].metrics["requests"] >= 30
    assert shared < 30  # they shared steps
