"""The generated message code in protos/ is the output of protos/generate.py for the .proto
files.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
DESCRIPTOR = re.compile(r"AddSerializedFile\((.*)\)$", re.MULTILINE)


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of protos/ made anew with the installed grpcio-tools."""
    root = tmp_path_factory.mktemp("protos")
    (root / "protos").mkdir()
    (root / "oneflow").mkdir()
    (root / "oneflow" / "protos").symlink_to("../protos")
    for path in [*(ROOT / "protos").glob("*.proto"), ROOT / "protos" / "generate.py"]:
        shutil.copy(path, root / "protos")
    command = [sys.executable, str(root / "protos" / "generate.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return root / "protos"


def generated(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.iterdir() if p.name.endswith(GENERATED))
    return {path.name: path.read_text() for path in files}


def test_same_files_are_generated(regenerated: Path) -> None:
    assert list(generated(ROOT / "protos")) == list(generated(regenerated))


def test_messages_are_those_of_the_proto_files(regenerated: Path) -> None:
    """Compares serialised descriptors: the code around them depends on the compiler's version."""
    fresh = generated(regenerated)
    for name, text in generated(ROOT / "protos").items():
        if name.endswith("_pb2.py"):
            assert DESCRIPTOR.findall(text) == DESCRIPTOR.findall(fresh[name]) != [], (
                f"{name} is older than its .proto file; run `make protos`"
            )
