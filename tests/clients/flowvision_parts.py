"""Transforms, layers, losses, schedules and augmentation of flowvision against PyTorch.

python -m tests.clients.flowvision_parts [names] prints one line of JSON a part. Random draws of
both libraries come from one generator of NumPy, so that both copies draw the same.
"""

from __future__ import annotations

import importlib
import inspect
import json
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image

import oneflow as flow

from .comparing import copy_state, gradient_error, gradients, loss_of, numpy_of, tensors_of, worst
from .twin import STANDS, Twin

Library = Any
Part = Callable[[ModuleType, Library], Any]

PARTS: dict[str, Part] = {}
"""Functions of a copy of flowvision and the library below it, which return what is compared."""


def part(function: Part) -> Part:
    PARTS[function.__name__] = function
    return function


def image(dtype: str = "uint8", size: tuple[int, int] = (24, 31)) -> np.ndarray:
    y, x = np.mgrid[: size[0], : size[1]]
    waves = [np.sin(y / 5 + c) + np.cos(x / (4 + c)) for c in range(3)]
    return (np.stack(waves) * 60 + 128).astype(dtype)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


# ---- transforms ----------------------------------------------------------------------------------

TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "Resize": lambda t: t.Resize(17),
    "Resize both": lambda t: t.Resize((40, 20)),
    "CenterCrop": lambda t: t.CenterCrop(15),
    "CenterCrop larger": lambda t: t.CenterCrop(40),
    "Pad": lambda t: t.Pad((1, 2, 3, 4), fill=7),
    "Pad reflect": lambda t: t.Pad(3, padding_mode="reflect"),
    "Pad edge": lambda t: t.Pad(3, padding_mode="edge"),
    "Pad symmetric": lambda t: t.Pad(3, padding_mode="symmetric"),
    "RandomApply": lambda t: t.RandomApply([t.CenterCrop(9)], p=0.5),
    "RandomOrder": lambda t: t.RandomOrder([t.CenterCrop(9), t.Pad(2)]),
    "RandomChoice": lambda t: t.RandomChoice([t.CenterCrop(9), t.Pad(2)]),
    "RandomCrop": lambda t: t.RandomCrop(12, padding=2),
    "RandomHorizontalFlip": lambda t: t.RandomHorizontalFlip(),
    "RandomVerticalFlip": lambda t: t.RandomVerticalFlip(),
    "RandomResizedCrop": lambda t: t.RandomResizedCrop(16),
    "RandomAffine": lambda t: t.RandomAffine(30, (0.1, 0.2), (0.8, 1.2), 10),
    "FiveCrop": lambda t: t.FiveCrop(8),
    "TenCrop": lambda t: t.TenCrop(8),
    "ColorJitter": lambda t: t.ColorJitter(0.4, 0.3, 0.2, 0.1),
    "RandomRotation": lambda t: t.RandomRotation(40),
    "RandomRotation expand": lambda t: t.RandomRotation(40, expand=True),
    "Grayscale": lambda t: t.Grayscale(3),
    "RandomGrayscale": lambda t: t.RandomGrayscale(0.5),
    "GaussianBlur": lambda t: t.GaussianBlur(5),
}


def transform(make: Callable[[Any], Any], kind: str) -> Part:
    def run(vision: ModuleType, library: Library) -> Any:
        pixels = image("uint8" if kind == "PIL" else kind)
        picture = (
            Image.fromarray(pixels.transpose(1, 2, 0)) if kind == "PIL" else library.tensor(pixels)
        )
        if kind == "float32":
            picture = picture / 255
        return [make(vision.transforms)(picture) for _ in range(3)]

    return run


TENSORS_ONLY = ("RandomAffine", "ColorJitter")
"""Transforms that fail for PIL images: there is no affine, and hues overflow with NumPy 2."""

for _name, _make in TRANSFORMS.items():
    for _kind in ("uint8", "float32") if _name in TENSORS_ONLY else ("PIL", "uint8", "float32"):
        PARTS[f"{_name} of {_kind}"] = transform(_make, _kind)


@part
def conversions(vision: ModuleType, library: Library) -> Any:
    t = vision.transforms
    picture = Image.fromarray(image().transpose(1, 2, 0))
    floating = t.ToTensor()(picture)
    grey = t.ToTensor()(picture.convert("L"))
    wide = t.ToTensor()(Image.fromarray(image("int32")[0]))
    normal = t.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])(floating)
    return [
        *(floating, grey, wide, normal, t.PILToTensor()(picture)),
        t.ToPILImage()(floating),
        t.ToPILImage()(library.tensor(image()[0])),
        t.ConvertImageDtype(library.uint8)(floating),
        t.ConvertImageDtype(library.float64)(library.tensor(image())),
        t.Compose([t.Resize(20), t.CenterCrop(16), t.ToTensor()])(picture),
    ]


@part
def factory(vision: ModuleType, library: Library) -> Any:
    picture = Image.fromarray(image(size=(60, 70)).transpose(1, 2, 0))
    training = vision.data.create_transform(
        32, is_training=True, auto_augment="rand-m9-mstd0.5-inc1", interpolation="bicubic"
    )
    return [training(picture), vision.data.create_transform(32)(picture)]


@part
def mixup(vision: ModuleType, library: Library) -> Any:
    found = []
    for mode in ("batch", "pair", "elem"):
        for minmax in (None, (0.2, 0.8)):
            mix = vision.data.Mixup(
                mixup_alpha=0.8, cutmix_alpha=1.0, cutmix_minmax=minmax, mode=mode, num_classes=7
            )
            label = library.tensor(np.arange(4))
            pixels = library.tensor(floats(4, 3, 12, 12).astype(np.float32))
            options = {"device": "cpu"} if "device" in inspect.signature(mix).parameters else {}
            found += [mix(pixels.clone(), label, **options) for _ in range(3)]
    return found


@part
def random_erasing(vision: ModuleType, library: Library) -> Any:
    pixels = library.tensor(floats(4, 3, 16, 18).astype(np.float32))
    return [
        vision.data.RandomErasing(1.0, mode=mode, max_count=2, device="cpu")(pixels.clone())
        for mode in ("const", "rand", "pixel")
    ]


# ---- layers --------------------------------------------------------------------------------------

LAYERS: dict[str, tuple[Callable[[Any, Library], Any], tuple[int, ...]]] = {
    "SEModule": (lambda v, _: v.SEModule(32), (2, 32, 5, 6)),
    "CbamModule": (lambda v, _: v.CbamModule(32), (2, 32, 5, 6)),
    "NonLocalAttn": (lambda v, _: v.NonLocalAttn(32), (2, 32, 5, 6)),
    "BAMModule": (lambda v, _: v.BAMModule(32), (4, 32, 12, 12)),
    "GlobalContext": (lambda v, _: v.GlobalContext(32), (2, 32, 5, 6)),
    "EcaModule": (lambda v, _: v.EcaModule(32), (2, 32, 5, 6)),
    "GCTModule": (lambda v, _: v.GCTModule(32), (2, 32, 5, 6)),
    "GCTModule l1": (lambda v, _: v.GCTModule(32, mode="l1"), (2, 32, 5, 6)),
    "CoordAttModule": (lambda v, _: v.CoordAttModule(32), (2, 32, 5, 6)),
    "ConvBnAct": (lambda v, _: v.ConvBnAct(4, 6, kernel_size=3), (2, 4, 8, 8)),
    "Mlp": (lambda v, _: v.Mlp(8, 12), (2, 5, 8)),
    "GluMlp": (lambda v, _: v.GluMlp(8, 12), (2, 5, 8)),
    "ConvMlp": (lambda v, _: v.ConvMlp(8, 12), (2, 8, 5, 5)),
    "PatchEmbed": (lambda v, _: v.PatchEmbed(16, 4, 3, 8), (2, 3, 16, 16)),
    "Conv2dSame": (lambda v, _: v.Conv2dSame(3, 4, 3, 2), (2, 3, 11, 10)),
    "FrozenBatchNorm2d": (lambda v, _: v.FrozenBatchNorm2d(3), (2, 3, 5, 5)),
    "LayerNorm2d": (lambda v, _: v.LayerNorm2d(3), (2, 3, 5, 5)),
    "DropBlock": (lambda v, _: v.DropBlock(), (2, 3, 16, 16)),
    "DropPath": (lambda v, _: v.DropPath(0.5), (4, 3, 5)),
    "StochasticDepth row": (lambda v, _: v.StochasticDepth(0.5, "row"), (4, 3, 5)),
    "Dynamic_conv2d": (lambda v, _: v.Dynamic_conv2d(8, 6, 3), (2, 8, 9, 9)),
    "hard_swish": (lambda v, _: v.hard_swish(), (3, 40)),
    "hard_sigmoid": (lambda v, _: v.hard_sigmoid(), (3, 40)),
}


@part
def sr_attention(vision: ModuleType, library: Library) -> Any:
    layer = vision.layers.SR_Attention(8, num_heads=2, sr_ratio=2)
    return lambda: layer(library.tensor(floats(2, 16, 8).astype(np.float32)), 4, 4), layer


@part
def feature_pyramid(vision: ModuleType, library: Library) -> Any:
    layer = vision.layers.FeaturePyramidNetwork(
        [4, 6], 5, extra_blocks=vision.layers.LastLevelP6P7(5, 5)
    )
    maps = {
        str(i): library.tensor(floats(1, c, 16 >> i, 12 >> i).astype(np.float32))
        for i, c in enumerate((4, 6))
    }
    return lambda: layer(maps), layer


for _name, (_layer, _shape) in LAYERS.items():

    def _run(vision: ModuleType, library: Library, layer: Any = _layer, shape: Any = _shape) -> Any:
        made = layer(vision.layers, library)
        return lambda: made(library.tensor(floats(*shape).astype(np.float32))), made

    PARTS[_name] = _run


@part
def losses(vision: ModuleType, library: Library) -> Any:
    x = library.tensor(floats(5, 7), requires_grad=True)
    label = library.tensor(np.arange(5))
    soft = library.tensor(np.abs(floats(5, 7)) / 7)
    boxes = library.tensor(np.abs(floats(6, 4)).cumsum(1), requires_grad=True)
    others = library.tensor(np.abs(floats(6, 4) * 0.9).cumsum(1))
    found = [
        vision.loss.LabelSmoothingCrossEntropy(0.1)(x, label),
        vision.loss.SoftTargetCrossEntropy()(x, soft),
        vision.layers.sigmoid_focal_loss(x, (soft > 0.1).to(x.dtype), reduction="sum"),
        vision.layers.generalized_box_iou_loss(boxes, others, reduction="sum"),
    ]
    sum(found).backward()
    return [*found, x.grad, boxes.grad]


@part
def boxes(vision: ModuleType, library: Library) -> Any:
    ops = vision.ops
    one = library.tensor(np.abs(floats(6, 4)).cumsum(1))
    two = library.tensor(np.abs(floats(9, 4)).cumsum(1))
    scores = library.tensor(np.abs(floats(6)))
    masks = np.zeros((2, 6, 8))
    masks[0, 2:4, 1:5] = masks[1, 1:, 3:4] = 1
    return [
        *(ops.box_area(one), ops.box_iou(one, two), ops.generalized_box_iou(one, two)),
        *(ops.complete_box_iou(one, two), ops.distance_box_iou(one, two)),
        *(ops.box_convert(one, "xyxy", new) for new in ("cxcywh", "xywh")),
        *(ops.clip_boxes_to_image(one, (2, 3)), ops.remove_small_boxes(one, 0.3)),
        *(ops.nms(one, scores, 0.4), ops.masks_to_boxes(library.tensor(masks))),
        ops.batched_nms(one, scores, library.tensor(np.arange(6) % 2), 0.4),
    ]


@part
def schedules(vision: ModuleType, library: Library) -> Any:
    s, rates = vision.scheduler, []
    for make in (
        lambda o: s.CosineLRScheduler(o, 10, lr_min=0.01, warmup_t=3, warmup_lr_init=0.001),
        lambda o: s.CosineLRScheduler(o, 4, t_mul=2.0, decay_rate=0.5, cycle_limit=3),
        lambda o: s.LinearLRScheduler(o, 10, 0.1, warmup_t=2),
        lambda o: s.StepLRScheduler(o, 3, 0.5, noise_range_t=(2, 9)),
        lambda o: s.MultiStepLRScheduler(o, [3, 6], 0.5),
        lambda o: s.PolyLRScheduler(o, 10, 0.5),
        lambda o: s.TanhLRScheduler(o, 10),
    ):
        optimizer = library.optim.SGD([library.nn.Parameter(library.ones(2))], lr=0.1)
        schedule = make(optimizer)
        for epoch in range(14):
            schedule.step(epoch)
            rates.append(optimizer.param_groups[0]["lr"])
    return np.array(rates, dtype=np.float64)


@part
def helpers(vision: ModuleType, library: Library) -> Any:
    from_utils = vision.utils
    layer = library.nn.Linear(4, 3).double()
    for parameter in layer.parameters():
        parameter.data.copy_(library.tensor(floats(*parameter.shape)))
    average = from_utils.ModelEmaV2(layer, 0.9)
    found = []
    for mode, value in (("norm", 0.5), ("value", 0.1), ("agc", 0.02)):
        layer(library.tensor(floats(5, 4))).square().sum().backward()
        from_utils.dispatch_clip_grad(layer.parameters(), value, mode)
        found += [p.grad.clone() for p in layer.parameters()]
    for parameter in layer.parameters():
        parameter.data.copy_(parameter * 2)
    average.update(layer)
    out, label = library.tensor(floats(8, 6)), library.tensor(np.arange(8) % 6)
    grid = from_utils.make_grid(library.tensor(floats(5, 3, 7, 8)), nrow=2, normalize=True)
    return [found, list(average.module.parameters()), from_utils.accuracy(out, label, (1, 3)), grid]


@part
def fake_data(vision: ModuleType, library: Library) -> Any:
    t = vision.transforms
    data = vision.datasets.FakeData(8, (3, 12, 14), 5, t.ToTensor())
    shapes = [(tuple(x.shape), 0 <= int(y) < 5) for x, y in (data[i] for i in range(8))]
    batches = library.utils.data.DataLoader(data, batch_size=4)
    return np.array([[*s, ok] for s, ok in shapes] + [[*x.shape[1:], 1] for x, _ in batches])


# ---- comparing -----------------------------------------------------------------------------------


class Draws:
    """One generator for both libraries, started anew for each part."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def restart(self) -> None:
        self.generator = np.random.default_rng(0)
        random.seed(0)
        np.random.seed(0)

    def give(self, library: Library) -> dict[str, Any]:
        def filled(draw: Callable[..., np.ndarray]) -> Callable[..., Any]:
            def fill(tensor: Any, *args: float, **_: Any) -> Any:
                if tensor.ndim > 3:  # weights, which only PyTorch draws by this method
                    return tensor
                values = draw(*args, size=tuple(tensor.shape))
                with library.no_grad():
                    return tensor.copy_(library.tensor(values, dtype=tensor.dtype))

            return fill

        def uniform(low: float = 0.0, high: float = 1.0, *, size: Any) -> np.ndarray:
            return self.generator.uniform(low, high, size)

        def normal(mean: float = 0.0, std: float = 1.0, *, size: Any) -> np.ndarray:
            return self.generator.normal(mean, std, size)

        library.Tensor.uniform_ = filled(uniform)
        library.Tensor.normal_ = filled(normal)
        return {
            "rand": lambda *size, **o: library.tensor(
                self.generator.random(size), dtype=o.get("dtype") or library.float32
            ),
            "randn": lambda *size, **_: library.tensor(
                self.generator.standard_normal(size), dtype=library.float32
            ),
            "randperm": lambda n, **_: library.tensor(self.generator.permutation(n)),
            "bernoulli": lambda p: (library.tensor(self.generator.random(tuple(p.shape))) < p).to(
                p.dtype
            ),
        }


def values_of(found: Any) -> Iterator[np.ndarray]:
    if isinstance(found, Image.Image):
        yield np.asarray(found).astype(np.float64)
    elif isinstance(found, np.ndarray):
        yield found.astype(np.float64)
    elif isinstance(found, list | tuple):
        for one in found:
            yield from values_of(one)
    else:
        for tensor in tensors_of(found):
            yield numpy_of(tensor)


def rounded_otherwise(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """Share of whole numbers that are one apart, as of a half rounded; 1 if anything else is."""
    apart = [np.abs(a - b) for a, b in zip(ours, theirs, strict=True) if a.shape == b.shape]
    if len(apart) < len(theirs) or not all(np.isin(x, (0, 1)).all() for x in apart):
        return 1.0
    return float(sum(x.sum() for x in apart) / sum(x.size for x in apart))


def compare(name: str, ours: ModuleType, theirs: ModuleType, draws: Draws) -> dict[str, Any]:
    report: dict[str, Any] = {"model": name}
    try:
        draws.restart()
        expected = PARTS[name](theirs, torch)
        draws.restart()
        found = PARTS[name](ours, flow)
        if isinstance(found, tuple) and callable(found[0]):
            copy_state(found[1], expected[1])
            results = []
            for (call, layer), library in ((expected, torch), (found, flow)):
                draws.restart()
                out = call()
                if any(True for _ in layer.parameters()):
                    loss_of(out, library).backward()
                results.append((out, gradients(layer)))
            (expected, their_grads), (found, our_grads) = results
            report["gradients"] = float(f"{gradient_error(our_grads, their_grads):.2e}")
        want = list(values_of(expected))
        report["values"] = sum(x.size for x in want)
        report["error"] = float(f"{worst(list(values_of(found)), want):.2e}")
        report["rounded"] = rounded_otherwise(list(values_of(found)), want)
        report["ok"] = report["error"] <= 1e-4 or report["rounded"] <= 0.01
        report["ok"] = report["ok"] and report.get("gradients", 0.0) <= 1e-3
        report["ok"] = report["ok"] and report["values"] > 0
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)
        at = [f"{f.filename.split('site-packages/')[-1]}:{f.lineno}" for f in where][-4:]
        report |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:300], "at": at}
    return report


def main(wanted: list[str]) -> None:
    import flowvision
    import flowvision.utils

    twin = Twin("flowvision")
    with twin.active():
        importlib.import_module("flowvision.utils")
    draws = Draws()
    for name, function in draws.give(flow).items():
        setattr(flow, name, function)
    for name, function in draws.give(torch).items():
        STANDS["oneflow", name] = function
    for name in wanted or PARTS:
        print(json.dumps(compare(name, flowvision, twin.module, draws)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
