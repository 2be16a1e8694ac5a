"""The digits example, which stops where a test wants to read its numbers.

    metrics_program.py FOLDER [options of digits.py]

After the first epoch and at the end it writes FOLDER/NAME.RANK (first, last) and waits for
FOLDER/NAME.go.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE_S = 600.0


def main() -> None:
    folder = Path(sys.argv[1])
    sys.argv = ["digits.py", *sys.argv[2:]]
    sys.path.insert(0, str(EXAMPLES))
    digits: Any = importlib.import_module("digits")
    accuracy = digits.accuracy

    def accuracy_and_stop(*args: Any) -> float:
        result: float = accuracy(*args)
        stop(folder, "first")
        return result

    digits.accuracy = accuracy_and_stop
    trainer = digits.Trainer(*digits.parse_arguments())  # its graphs live until the end
    trainer.run()
    stop(folder, "last")


def stop(folder: Path, name: str) -> None:
    (folder / f"{name}.{os.environ['RANK']}").touch()
    end = time.monotonic() + PATIENCE_S
    while not (folder / f"{name}.go").exists() and time.monotonic() < end:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
