"""The digits example, which then stays until its last numbers have been read.

    metrics_program.py FOLDER [options of digits.py]

Writes FOLDER/done.RANK when it has trained and waits for FOLDER/go.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE_S = 60.0


def main() -> None:
    folder = Path(sys.argv[1])
    sys.argv = ["digits.py", *sys.argv[2:]]
    sys.path.insert(0, str(EXAMPLES))
    digits: Any = importlib.import_module("digits")
    trainer = digits.Trainer(*digits.parse_arguments())  # its graphs live until the end
    trainer.run()
    (folder / f"done.{os.environ['RANK']}").touch()
    end = time.monotonic() + PATIENCE_S
    while not (folder / "go").exists() and time.monotonic() < end:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
