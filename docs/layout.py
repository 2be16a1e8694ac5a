"""Writes LAYOUT.md: a line on every source file, the first of its docstring. `make layout`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Folders in the order the data flows, each with what it is for; any other folder comes last.
FOLDERS = {
    "oneflow": "what users import",
    "oneflow/core": "words that every package shares",
    "oneflow/ops": "one declaration per op",
    "protos": "the wire format (the `*_pb2*` files beside it are generated: `make protos`)",
    "kernels": "arrays in, arrays out; file names mirror `oneflow/ops`",
    "boxing": "from one SBP to another",
    "actors": "every device: bind a plan and run it",
    "scheduler": "rank 0: compile, broadcast, run jobs, watch ranks",
    "scheduler/compiler": "the passes, in the order of `pipeline`",
    "launcher": "start and supervise processes",
    "deploy": "files for operators",
    "examples": "programs to start from",
    "benchmarks": "measurements",
    "docs": "documentation and what makes it",
    "tests": "checks; `tests/unit` mirrors the source",
}
SUFFIXES = (".py", ".proto", ".cu", ".sh")
GENERATED = ("_pb2.py", "_pb2_grpc.py")
SKIPPED = ("build", "dist", "log", "__pycache__")
HEAD = """\
# Layout

A line on every source file. The rooms `protos`, `kernels`, `boxing`, `actors`, `scheduler` and
`launcher` are linked into `oneflow/`, so `scheduler/x.py` is imported as `oneflow.scheduler.x`.
`make layout` writes this page from the first line of each file; a test checks that it is complete.
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


def first_line(path: Path) -> str:
    """What a file says about itself first: the first line of its docstring or its first comment."""
    text = path.read_text()
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        marks = ("//", "#", "/*")
        comments = (line for line in text.splitlines() if line.startswith(marks))
        said = next((line for line in comments if not line.startswith("#!")), "").lstrip("/#* ")
    return said.strip().split("\n")[0].strip()


def render(root: Path = ROOT) -> str:
    folders: dict[str, list[Path]] = {}
    for path in source_files(root):
        folders.setdefault(str(path.parent), []).append(path)
    parts = [HEAD]
    for folder in sorted(folders, key=_rank):
        purpose = FOLDERS.get(folder)
        parts.append(f"\n## `{folder}/`{': ' + purpose if purpose else ''}\n\n")
        parts += [f"- `{path.name}`: {first_line(root / path)}\n" for path in folders[folder]]
    return "".join(parts)


def _rank(folder: str) -> tuple[int, str]:
    """Folders follow the one they are in; those of FOLDERS come in its order."""
    names = list(FOLDERS)
    known = [i for i, name in enumerate(names) if folder == name or folder.startswith(f"{name}/")]
    return (max(known) if known else len(names), folder)


if __name__ == "__main__":
    (ROOT / "LAYOUT.md").write_text(render())
