"""Regenerates the Python code of every .proto file in this folder: `python protos/generate.py`.

Files are compiled under the name `oneflow/protos/<file>.proto`, the place they are imported from,
so that the generated code says `from oneflow.protos import x_pb2` and no name clashes with another
package's `graph.proto`. One file imports another as `import "oneflow/protos/graph.proto";`.
Needs grpcio-tools (extra `test`).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

# The compiler makes its output refuse every protobuf and grpcio older than itself, which would turn
# whatever version the last developer had into a requirement of all users. The code works with all
# versions that pyproject.toml allows, so these checks go.
VERSION_CHECKS = (
    r"^# Protobuf Python Version: .*\n",
    r"^from google\.protobuf import runtime_version as _runtime_version\n",
    r"^_runtime_version\.ValidateProtobufRuntimeVersion\(\n(?:    .*\n)*\)\n",
    r"^GRPC_GENERATED_VERSION = (?:.|\n)*?^    raise RuntimeError\(\n(?:        .*\n)*    \)\n",
    r"^import warnings\n",
)


def generate(proto: str) -> None:
    """Writes <name>_pb2.py, <name>_pb2.pyi and, for a service, <name>_pb2_grpc.py beside it."""
    name = f"oneflow/protos/{proto}"
    outputs = ["--python_out=.", "--pyi_out=."]
    if any(line.startswith("service ") for line in (HERE / proto).read_text().splitlines()):
        outputs.append("--grpc_python_out=.")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, name]
    subprocess.run(command, cwd=ROOT, check=True)
    for path in HERE.glob(proto.removesuffix(".proto") + "_pb2*.py"):
        drop_version_checks(path)


def drop_version_checks(path: Path) -> None:
    """Removes from a generated file what ties it to the version of its compiler."""
    text = path.read_text()
    for pattern in VERSION_CHECKS:
        text = re.sub(pattern, "", text, flags=re.MULTILINE)
    path.write_text(text)


def main() -> None:
    for path in sorted(HERE.glob("*.proto")):
        generate(path.name)
        print(f"generated {path.name}")


if __name__ == "__main__":
    main()
