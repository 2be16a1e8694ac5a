"""`examples/text_to_image.py` on a folder of random weights, beside PyTorch's image.

`python -m tests.clients.text_to_image FOLDER` prints a line: the largest difference of a pixel, of
255, on the first run and on one of another process, which finds the graphs of the first.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from .installing import ROOT
from .onediff_pipes import pipeline


def image(folder: Path, name: str, *options: str) -> np.ndarray:
    """The pixels of an image that a process of its own makes."""
    from PIL import Image

    program = [sys.executable, str(ROOT / "examples" / "text_to_image.py"), str(folder / "weights")]
    given = ["a b c", "--steps", "3", "--size", "32", "--image", str(folder / name)]
    subprocess.run([*program, *given, *options], check=True, timeout=1500)
    with Image.open(folder / name) as read:
        assert read.size == (32, 32)
        return np.asarray(read.convert("RGB")).astype(int)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    (folder / "tokens").mkdir()
    pipeline(folder / "tokens").save_pretrained(folder / "weights")
    wanted = image(folder, "torch.png", "--library", "pytorch")
    graphs = ["--graphs", str(folder / "graphs")]
    far = [int(abs(image(folder, f"{i}.png", *graphs) - wanted).max()) for i in range(2)]
    saved = sorted(path.name for path in (folder / "graphs").iterdir())
    print(json.dumps({"differences": far, "graphs": saved, "spread": int(np.ptp(wanted))}))
