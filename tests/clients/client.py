"""A client as its file declares it, read without importing a package."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path

TASKS = Path(__file__).with_name("tasks")


@dataclass(frozen=True)
class Client:
    """One file of `tasks/`.

    packages: requirements for pip; the first one gives the version in the table. ran: the sentence
    of the table. tolerance: of numbers that are not integers, as a part of the largest value.
    refused: task -> feature that the library refuses on purpose. suite: expression that chooses
    tests of test_clients.py, which the client has instead of tasks.
    """

    name: str
    file: Path
    ran: str
    tasks: tuple[str, ...]
    packages: tuple[str, ...] = ()
    tolerance: float = 1e-4
    time_limit_s: float = 300.0
    refused: tuple[tuple[str, str], ...] = ()
    suite: str = ""

    @property
    def digest(self) -> str:
        """Digest of the file."""
        return hashlib.sha256(self.file.read_bytes()).hexdigest()[:16]


def read(file: Path) -> Client:
    """Read a client's file.

    Raises:
        ValueError: If it has no docstring, no task, or a refused task that is not there.
    """
    tree = ast.parse(file.read_text())
    constants = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
        and target.id in ("PACKAGES", "TOLERANCE", "TIME_LIMIT_S", "REFUSED", "SUITE")
    }
    tasks = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("task_")
    ]
    docstring = ast.get_docstring(tree)
    refused = constants.get("REFUSED", {})
    is_whole = bool(tasks) != ("SUITE" in constants) and refused.keys() <= set(tasks)
    if not docstring or not is_whole:
        raise ValueError(
            f"{file.name}: a client needs a docstring, functions `task_...` or a SUITE, and "
            "REFUSED of these tasks"
        )
    return Client(
        name=file.stem.replace("_", "-"),
        file=file,
        ran=" ".join(docstring.split("\n\n")[0].split()).rstrip("."),
        tasks=tuple(tasks),
        packages=tuple(constants.get("PACKAGES", "").split()),
        tolerance=constants.get("TOLERANCE", 1e-4),
        time_limit_s=constants.get("TIME_LIMIT_S", 300.0),
        refused=tuple(refused.items()),
        suite=constants.get("SUITE", ""),
    )


def all_clients(folder: Path = TASKS) -> list[Client]:
    """Read all files of a folder, in the order of names."""
    return [read(file) for file in sorted(folder.glob("[!_]*.py"))]
