"""Writes LAYOUT.md: the rooms and their doors, then a sentence on every file (`make layout`)."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Folders in the order the data flows, each with what it is for; any other folder comes last.
FOLDERS = {
    "oneflow": "what users import",
    "oneflow/api": "the public table, one file per topic",
    "oneflow/core": "words that every package shares",
    "oneflow/serving": "models over HTTP: `oneflow serve`",
    "oneflow/autoprof": "times of ops beside PyTorch's: `python -m oneflow.autoprof`",
    "oneflow/test_utils": "tests of ops against PyTorch, by upstream's names",
    "oneflow/services": "tools of processes that serve: pages, lines with proofs, traces",
    "oneflow/ops": "one declaration per op",
    "oneflow/functional": "the functions users call, over ops",
    "oneflow/tensor": "the one tensor class, and how ops run eagerly",
    "oneflow/autograd": "the tape and the way back over it",
    "oneflow/nn": "layers, parameters, data parallelism",
    "oneflow/optim": "optimizers and schedules of learning rates",
    "oneflow/graph": "programs traced into graphs",
    "oneflow/distributed": "ranks, groups and collectives of scripts",
    "oneflow/one_embedding": "embedding tables larger than memory",
    "oneflow/one_embedding/store": "rows by id, in memory and on disks",
    "protos": "the wire format (the `*_pb2*` files beside it are generated: `make protos`)",
    "kernels": "arrays in, arrays out; file names mirror `oneflow/ops`",
    "boxing": "from one SBP to another",
    "actors": "every device: bind a plan and run it",
    "scheduler": "rank 0: compile, broadcast, run jobs, watch ranks",
    "scheduler/compiler": "the passes, in the order of `passes.py`",
    "scheduler/compiler/rewrite": "what the configuration asks for, written into the program",
    "scheduler/compiler/layout": "how each value lies, and what it costs",
    "scheduler/compiler/schedule": "what runs when: stages, micro-batches, the order",
    "scheduler/compiler/lower": "from a graph to a plan: actors and registers",
    "launcher": "start and supervise processes",
    "deploy": "files for operators",
    "examples": "programs to start from",
    "benchmarks": "measurements",
    "docs": "documentation and what makes it",
    "tests/cuda_emulation": "CUDA on a machine without a GPU, for the tests of `tests/gpu`",
    "tests": "checks; `tests/unit` mirrors the source",
}
SUFFIXES = (".py", ".proto", ".cu", ".sh")
GENERATED = ("_pb2.py", "_pb2_grpc.py")
SKIPPED = ("build", "dist", "log", "__pycache__")
# The rooms in the order the data flows, and where a reader enters each.
DOORS = {
    "oneflow": "`api` says what users find, `surfaces.py` hands it out",
    "oneflow/api": "`row.py`: what a row says",
    "oneflow/serving": "`language/engine.py` runs a model, `openai/app.py` answers requests",
    "oneflow/services": "`proof.py` and `line.py`: how both ends of a connection know each other",
    "oneflow/core": "`op.py` and `dispatch.py`: what an op is, and the one door to running it",
    "oneflow/ops": "`__init__.py` lists the topics; `matmul.py` is a good first declaration",
    "oneflow/functional": "one file a topic: promotion, defaults, compositions of ops",
    "oneflow/tensor": "`tensor.py`, then `eager.py` and `eager_global.py`, which run ops at once",
    "oneflow/autograd": "`engine.py` goes back over what the tape of `oneflow/tensor` recorded",
    "oneflow/nn": "`module.py`; layers are in `modules/`",
    "oneflow/optim": "`optimizer.py`",
    "oneflow/graph": "`graph.py`: `nn.Graph`, from `build` to a bound job",
    "oneflow/distributed": "`world.py`: this process's rank and its peers",
    "oneflow/one_embedding/store": "`row_store.py`: `open_store`, and looking up rows",
    "protos": "`plan.proto` and `cluster.proto`",
    "kernels": "`registry.py`",
    "boxing": "`route.py` plans, `execute.py` moves",
    "actors": "`job.py` opens a plan, `executor.py` runs its actors, `actor.py` is one",
    "scheduler": "`server.py` is rank 0's; `cluster/server.py` is a cluster's",
    "scheduler/compiler": "`passes.py`: the passes in order, and their folders",
    "launcher": "`launch.py`; `daemon/host.py` is a cluster's daemon",
    "tests": "`tests/unit` mirrors the source; CONTRIBUTING.md says what each folder checks",
}
HEAD = """\
# Layout

First the rooms and their doors, in the order the data flows; then a sentence on every source file.
The rooms `protos`, `kernels`, `boxing`, `actors`, `scheduler` and `launcher` are linked into
`oneflow/`, so `scheduler/x.py` is imported as `oneflow.scheduler.x`. `make layout` writes this page
from the files' own first sentences; a test checks that it is complete.

| room | what it is for | door |
|---|---|---|
"""


def source_files(root: Path = ROOT) -> list[Path]:
    """Every source file, relative to root; not generated, not empty, each once although linked."""
    found = []
    for path in root.rglob("*"):
        relative = path.relative_to(root)
        if path.suffix in SUFFIXES and path.is_file() and _is_ours(root, relative):
            found.append(relative)
    return sorted(found)


def _is_ours(root: Path, relative: Path) -> bool:
    if any(p.startswith(".") or p in SKIPPED or p.endswith(".egg-info") for p in relative.parts):
        return False
    if relative.name.endswith(GENERATED) or not (root / relative).stat().st_size:
        return False
    return not any((root / parent).is_symlink() for parent in relative.parents)


def first_sentence(path: Path) -> str:
    """What a file says about itself first: a sentence of its docstring, or its first comment."""
    text = path.read_text()
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        lines = [line for line in text.splitlines() if not line.startswith("#!")]
        comment = itertools.takewhile(
            lambda line: line.startswith(("//", "#", "/*", " *")),
            itertools.dropwhile(str.isspace, lines),
        )
        said = " ".join(line.strip("/#* ") for line in comment)
    paragraph = " ".join(said.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`\"'(])", paragraph)[0]


def render(root: Path = ROOT) -> str:
    folders: dict[str, list[Path]] = {}
    for path in source_files(root):
        folders.setdefault(str(path.parent), []).append(path)
    parts = [HEAD]
    for room, door in DOORS.items():
        parts.append(f"| `{room}/` | {FOLDERS.get(room, '')} | {door} |\n")
    for folder in sorted(folders, key=_rank):
        purpose = FOLDERS.get(folder)
        parts.append(f"\n## `{folder}/`{': ' + purpose if purpose else ''}\n\n")
        if _is_of_tests(folder):
            parts.append(" ".join(f"`{path.name}`" for path in folders[folder]) + "\n")
        else:
            parts += [f"- `{p.name}`: {first_sentence(root / p)}\n" for p in folders[folder]]
    return "".join(parts)


def _is_of_tests(folder: str) -> bool:
    """Are a folder's files named only? Test files are many, and their names are claims already."""
    return folder == "tests" or folder.startswith("tests/")


def _rank(folder: str) -> tuple[int, str]:
    """Folders follow the one they are in; those of FOLDERS come in its order."""
    names = list(FOLDERS)
    known = [i for i, name in enumerate(names) if folder == name or folder.startswith(f"{name}/")]
    return (max(known) if known else len(names), folder)


if __name__ == "__main__":
    (ROOT / "LAYOUT.md").write_text(render())
