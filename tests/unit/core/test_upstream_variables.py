"""Variables of upstream's, each by its effect on a program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from oneflow.core.config import Config, current_config, set_config
from oneflow.core.control_channel import channel_options
from oneflow.core.device import load_cupy
from oneflow.utils.data.records import read, write
from tests.unit.one_embedding.making import embedding

EAGER = """
import oneflow as flow
w = flow.ones(2, requires_grad=True)
y = (flow.tensor([1.0, 0.0]) * w).log()
print("reached")
"""
GRAPH = """
import oneflow as flow

class Log(flow.nn.Module):
    def forward(self, x):
        return (x - 1).log() * 2

class Program(flow.nn.Graph):
    def __init__(self):
        super().__init__()
        self.log = Log()

    def build(self, x):
        return self.log(x + 1).sum()

print(Program()(flow.tensor([1.0, 0.0])), "reached")
"""
NUMERICS = "ONEFLOW_DEBUG_KERNEL_SYNC_CHECK_NUMERICS"


def _run(program: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(program)
    return subprocess.run(
        [sys.executable, str(path)],
        env=os.environ | variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def _line(program: str) -> int:
    return next(i + 1 for i, text in enumerate(program.splitlines()) if ".log()" in text)


def test_a_kernel_with_a_result_that_is_not_finite_ends_the_program(tmp_path: Path) -> None:
    done = _run(EAGER, tmp_path, **{NUMERICS: "1"})
    assert done.returncode and "reached" not in done.stdout
    assert "NonFiniteError: log: 1 of 2 numbers of a result are not finite" in done.stderr
    assert f'program.py", line {_line(EAGER)}' in done.stderr
    assert not (tmp_path / "log").exists()


def test_in_a_graph_its_module_is_named_and_the_file_of_its_arrays(tmp_path: Path) -> None:
    done = _run(GRAPH, tmp_path, **{NUMERICS: "1", f"{NUMERICS}_DUMP": "1"})
    assert done.returncode and "reached" not in done.stdout
    assert (
        "log: 1 of 2 numbers of a result are not finite, of float32[2] in 0.0..1.0" in done.stderr
    )
    assert f"program.py:{_line(GRAPH)}, in module log" in done.stderr
    found = re.search(r"; (log/\S+/nonfinite_rank0_log\.npz) has them", done.stderr)
    assert found is not None
    with np.load(tmp_path / found[1]) as arrays:
        np.testing.assert_array_equal(arrays["in0"], [1, 0])
        np.testing.assert_array_equal(arrays["out0"], [0, -np.inf])


WAITING = """
import oneflow as flow
from tests.support.fake_device import Fake

flow.register_device("fake", Fake)
waits = 0

def synchronize(self):
    global waits
    waits += 1

Fake.synchronize = synchronize
x = flow.ones(2, device="fake")
before = waits
y = x + x
print(waits - before)
"""


def test_the_device_is_waited_for_after_each_kernel(tmp_path: Path) -> None:
    root = str(Path(__file__).resolve().parents[3])
    done = _run(WAITING, tmp_path, ONEFLOW_DEBUG_KERNEL_SYNC_CHECK="1", PYTHONPATH=root)
    assert (done.stdout.strip(), done.stderr) == ("1", "")


def test_a_dry_run_compiles_and_writes_dumps(tmp_path: Path) -> None:
    done = _run(GRAPH, tmp_path, ONEFLOW_DRY_RUN="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "reached" not in done.stdout and "7 ops, 3 actors" in done.stdout
    assert any(path.name.endswith("_infer_sbp.txt") for path in (tmp_path / "log").iterdir())
    named = Config.from_env({"ONEFLOW_DRY_RUN": "1", "ONEFLOW_DUMP": "elsewhere"})
    assert (named.dump_dir, Config.from_env({}).dump_dir) == ("elsewhere", None)


@pytest.fixture
def configured() -> Iterator[Callable[..., None]]:
    """A function that takes variables and makes them this process's configuration."""
    kept = current_config()
    yield lambda **variables: set_config(Config.from_env(variables))
    set_config(kept)


@pytest.mark.parametrize("value", ["", "1", "0"])
def test_cupy_is_told_of_tf32_before_it_is_imported(
    value: str,
    configured: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "cupy.py").write_text("import os\nTOLD = os.environ['CUPY_TF32']\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setenv("CUPY_TF32", "as before")
    configured(**({"ONEFLOW_EP_CUDA_ENABLE_TF32_EXECUTION": value} if value else {}))
    told = load_cupy().TOLD
    assert told == (value or "as before")
    del sys.modules["cupy"]


@pytest.mark.parametrize(
    ("upstream", "own", "wanted"),
    [(None, None, True), ("0", None, False), ("0", "1", True), ("1", "0", False)],
)
def test_cuda_graphs_have_two_names(upstream: str | None, own: str | None, wanted: bool) -> None:
    given = {"ONEFLOW_KERNEL_ENABLE_CUDA_GRAPH": upstream, "ONEFLOW_CUDA_GRAPHS": own}
    env = {name: value for name, value in given.items() if value is not None}
    assert Config.from_env(env).cuda_graphs is wanted


@pytest.mark.parametrize(("value", "form"), [("0", "float32"), ("1", "int8")])
def test_rows_of_embeddings_travel_in_8_bits(
    value: str, form: str, configured: Callable[..., None]
) -> None:
    configured(ONEFLOW_ONE_EMBEDDING_ENABLE_QUANTIZED_COMM=value)
    assert embedding().communication == form
    assert embedding(communication="float16").communication == "float16"


def _echoed(nbytes: int) -> int:
    """Send a message of `nbytes` to a server and back."""
    echo = grpc.unary_unary_rpc_method_handler(lambda data, _: data)
    service = grpc.method_handlers_generic_handler("Echo", {"Echo": echo})
    server = grpc.server(ThreadPoolExecutor(1), options=channel_options())
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
            return len(channel.unary_unary("/Echo/Echo")(bytes(nbytes), timeout=60))
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("value", ["8388608", "-1"])
def test_messages_may_be_larger(value: str, configured: Callable[..., None]) -> None:
    nbytes = 5 << 20
    with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
        _echoed(nbytes)
    configured(ONEFLOW_GRPC_MAX_MESSAGE_BYTE_SIZE=value)
    assert _echoed(nbytes) == nbytes


def _num_reads() -> int:
    counts = Path("/proc/self/io").read_text()
    return int(re.findall(r"syscr: (\d+)", counts)[0])


def test_records_are_read_in_pieces_of_that_size(
    configured: Callable[..., None], tmp_path: Path
) -> None:
    path = tmp_path / "part-0"
    write(path, ({"x": np.arange(25)} for _ in range(4000)))
    counts = []
    for nbytes in ("4096", "262144"):
        configured(ONEFLOW_PERSISTENT_IN_STREAM_BUFFER_SIZE_BYTES=nbytes)
        before = _num_reads()
        assert len(list(read(path))) == 4000
        counts.append(_num_reads() - before)
    assert counts[0] > path.stat().st_size // 4096 > 20 > counts[1]
