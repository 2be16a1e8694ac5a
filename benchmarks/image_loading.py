"""Loading images for training: JPEGs decoded, a random part of each resized to 224 pixels, batched
by two workers; ours beside torchvision's transforms in PyTorch's DataLoader.

    python benchmarks/image_loading.py [--images 256] [--batch 32] [--workers 2] [--rounds 7]
        [--json FILE]

Both sides read the same files of 500 x 375 pixels (the mean size of ImageNet's), draw parts by the
same rule, give uint8 batches (n, 3, 224, 224), and keep their workers between passes; they take
turns. Ours goes through Pillow unless OpenCV is installed, torchvision's through Pillow. ratio is
PyTorch's time of a pass over ours.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
import torchvision.transforms as T
from measure import arguments, in_turns, paired, report
from PIL import Image

from oneflow.utils import data as flow_data
from oneflow.utils.data import images

SIZE = 224


def write_images(folder: Path, count: int) -> list[Path]:
    """Photo-like files: smooth colors with edges and noise, JPEG quality 90, about 60 kB each."""
    rng = np.random.default_rng(0)
    paths = []
    for i in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        pixels = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC))
        noisy = np.clip(pixels + rng.normal(0, 6, pixels.shape), 0, 255).astype(np.uint8)
        paths.append(folder / f"{i:05d}.jpg")
        Image.fromarray(noisy).save(paths[-1], quality=90)
    return paths


class Ours(flow_data.Dataset[Any]):
    """Parts of the files, drawn by a generator of the worker's."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        rng = np.random.default_rng(np.random.randint(1 << 30))
        part = images.random_resized_crop(self.paths[index].read_bytes(), rng, SIZE, SIZE)
        return np.ascontiguousarray(part.transpose(2, 0, 1))


class Theirs(torch.utils.data.Dataset[Any]):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.transform = T.Compose([T.RandomResizedCrop(SIZE, antialias=True), T.PILToTensor()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB"))


def passed(loader: Any) -> int:
    """Images of a pass, all of whose pixels have been touched."""
    total = 0
    for batch in loader:
        assert tuple(batch.shape[1:]) == (3, SIZE, SIZE)
        batch.numpy().max()
        total += batch.shape[0]
    return total


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = write_images(Path(folder), options.images)
        how = {"batch_size": options.batch, "num_workers": options.workers, "shuffle": True}
        ours = flow_data.DataLoader(Ours(paths), persistent_workers=True, **how)
        theirs = torch.utils.data.DataLoader(Theirs(paths), persistent_workers=True, **how)
        assert passed(ours) == passed(theirs) == options.images
        times = in_turns(
            {"ours": lambda: passed(ours), "theirs": lambda: passed(theirs)}, options.rounds
        )
    found = paired(times, "ours", "theirs")
    row = {"images_per_s": options.images / found["ours_s"], **found}
    report(f"{options.images} images, {options.workers} workers", [row], options.json)


if __name__ == "__main__":
    main()
