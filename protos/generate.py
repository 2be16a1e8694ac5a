"""Regenerates the Python code of every .proto file in this folder: `python protos/generate.py`.

Files are compiled under the name `oneflow/protos/<file>.proto`, the place they are imported
from, so that the generated code says `from oneflow.protos import x_pb2` and no name clashes with
another package's `graph.proto`. One file imports another as `import
"oneflow/protos/graph.proto";`. Needs grpcio-tools (extra `test`). Run it with the oldest grpcio
and protobuf that must be supported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def generate(proto: str) -> None:
    """Writes <name>_pb2.py, <name>_pb2.pyi and, where the file has a service, <name>_pb2_grpc.py
    beside it.
    """
    name = f"oneflow/protos/{proto}"
    outputs = ["--python_out=.", "--pyi_out=."]
    if any(line.startswith("service ") for line in (HERE / proto).read_text().splitlines()):
        outputs.append("--grpc_python_out=.")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, name]
    subprocess.run(command, cwd=ROOT, check=True)


def main() -> None:
    for path in sorted(HERE.glob("*.proto")):
        generate(path.name)
        print(f"generated {path.name}")


if __name__ == "__main__":
    main()
