"""One-yolov5's own programs, unmodified, on a made-up data set: train.py, val.py, detect.py.

`python -m tests.clients.yolov5_programs FOLDER WORK` takes a checkout of Oneflow-Inc/one-yolov5 and
a folder to work in, and prints one line of JSON: losses of the epochs, results of the validation,
and the number of boxes that are detected in each image.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

EPOCHS = 2
SIZE = 64
NAMES = ("square", "bar")
RUNS = "runs"


def draw(rng: np.random.Generator) -> tuple[np.ndarray, list[str]]:
    """An image with a bright box on noise, and the label line of the box."""
    image = rng.integers(0, 60, (SIZE, SIZE, 3), dtype=np.uint8)
    kind = int(rng.integers(2))
    width, height = (20, 20) if kind == 0 else (36, 12)
    left, top = (int(rng.integers(SIZE - n)) for n in (width, height))
    image[top : top + height, left : left + width] = (240, 200, 30) if kind == 0 else (30, 90, 250)
    box = [(left + width / 2) / SIZE, (top + height / 2) / SIZE, width / SIZE, height / SIZE]
    return image, [" ".join(map(str, (kind, *box)))]


def make_data(folder: Path) -> Path:
    """Write images and labels for training and validation. Return the file that describes them."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 4)):
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            image, lines = draw(rng)
            Image.fromarray(image).save(folder / "images" / part / f"{i}.png")
            (folder / "labels" / part / f"{i}.txt").write_text("\n".join(lines) + "\n")
    names = "\n".join(f"  {i}: {name}" for i, name in enumerate(NAMES))
    described = folder / "data.yaml"
    described.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames:\n{names}\n")
    return described


def settings(work: Path) -> Path:
    """Return a folder of the programs' settings, with a font, which they would download."""
    from matplotlib import font_manager

    folder = work / "settings"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(font_manager.findfont("DejaVu Sans"), folder / "Arial.ttf")
    return folder


def run(checkout: Path, work: Path, program: str, *args: str) -> str:
    """Run one of the programs on the CPU. Return its output."""
    environment = os.environ | {
        "ONEFLOW_LOAD_ANY_CLASS": "1",
        "YOLOv5_AUTOINSTALL": "false",
        "YOLOV5_CONFIG_DIR": str(settings(work)),
        "WANDB_MODE": "disabled",
        "MPLBACKEND": "agg",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    command = [sys.executable, program, *args]
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=1500
    )
    if done.returncode:
        raise SystemExit(f"{program} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def main(checkout: Path, work: Path) -> dict[str, Any]:
    data, runs = make_data(work / "data"), work / RUNS
    common = "--device", "cpu", "--project", str(runs), "--exist-ok"
    small = "--data", str(data), "--imgsz", str(SIZE), "--batch-size", "4"
    model = "--weights", "", "--cfg", "models/yolov5n.yaml"
    few = *small, *common, "--workers", "0"
    run(checkout, work, "train.py", *model, *few, "--epochs", str(EPOCHS), "--name", "train")
    best = str(max((runs / "train" / "weights").glob("best*")))
    validated = run(checkout, work, "val.py", "--weights", best, *few, "--name", "val")
    source = "--source", str(work / "data" / "images" / "val"), "--data", str(data)
    saved = "--imgsz", str(SIZE), "--conf-thres", "0.0001", "--save-txt", "--name", "detect"
    run(checkout, work, "detect.py", "--weights", best, *source, *saved, *common)
    with open(runs / "train" / "results.csv", newline="") as file:
        table = csv.DictReader(file, skipinitialspace=True)
        rows = [{key.strip(): float(value) for key, value in row.items()} for row in table]
    found = {
        p.stem: len(p.read_text().splitlines()) for p in (runs / "detect" / "labels").glob("*")
    }
    return {
        "losses": [[row[f"train/{kind}_loss"] for kind in ("box", "obj", "cls")] for row in rows],
        "validated": [line for line in validated.splitlines() if line.strip().startswith("all")],
        "images": sorted(p.name for p in (runs / "detect").glob("*.png")),
        "found": found,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())), flush=True)
