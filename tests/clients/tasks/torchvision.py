"""detectors (Faster, Mask, Keypoint R-CNN, RetinaNet, FCOS, SSD) that train and infer; ops on
boxes; segmentation, video; transforms v1 and v2 with tv_tensors; drawing, grids, data sets.

PyTorch's side reads boxes by tests/clients/regions.py, in double precision: proposals and
suppression turn on the last digits of scores.
"""

import numpy as np

from tests.clients.inputs import fill, integers, numbers, shares
from tests.clients.vision_ops import torchvision_of

PACKAGES = "torchvision"
TIME_LIMIT_S = 1500
REFUSED = {"task_feature_extraction": "torch.fx"}


FEW = {
    "min_size": 96, "max_size": 128,
    "rpn_pre_nms_top_n_train": 200, "rpn_post_nms_top_n_train": 100,
    "rpn_pre_nms_top_n_test": 200, "rpn_post_nms_top_n_test": 100, "box_batch_size_per_image": 64,
}  # fmt: skip
"""Settings of detectors in two stages for few proposals."""


def _detected(torch, name, *, classes=4, masks=False, points=0, **sizes):
    torchvision_of(torch)
    from torchvision.models import detection

    torch.randperm = lambda n, **options: torch.arange(n)  # both sides sample the same boxes
    options = {"num_keypoints": points} if points else {}
    model = getattr(detection, name)(
        weights=None, weights_backbone=None, num_classes=classes, **options, **sizes
    )
    model = fill(model).double()
    images = [
        torch.tensor(shares(3, *size, seed=seed)).double()
        for seed, size in enumerate([(120, 150), (140, 110)])
    ]
    targets = []
    for seed, image in enumerate(images):
        corners = shares(3, 2, seed=seed) * 50 + 5
        corners = np.concatenate([corners, corners + 20 + 30 * shares(3, 2, seed=seed + 9)], 1)
        target = {
            "boxes": torch.tensor(corners).double(),
            "labels": torch.tensor(integers(classes - 1, 3, seed=seed) + 1),
        }
        if masks:
            inside = shares(3, *image.shape[1:], seed=seed) > 0.5
            target["masks"] = torch.tensor(inside.astype(np.uint8))
        if points:
            places = corners[:, None, :2] + 15 * shares(3, points, 2, seed=seed)
            seen = np.ones((3, points, 1), np.float32)
            target["keypoints"] = torch.tensor(np.concatenate([places, seen], 2).astype("f"))
        targets.append(target)
    losses = model.train()(images, targets)
    sum(losses.values()).backward()
    squares = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None)
    with torch.no_grad():
        found = dict(enumerate(model.eval()(images)))
    for number, one in found.items():  # boxes of equal scores come in any order
        sides = one["boxes"].new_tensor([1.0, 1.37, 1.91, 2.73])
        order = ((one["boxes"] * sides).sum(1) + 0.11 * one["scores"]).argsort()
        found[number] = {name: values[order] for name, values in one.items()}
    return {"losses": losses, "gradient": squares.sqrt(), "found": found}


def task_faster_rcnn(torch):
    return _detected(torch, "fasterrcnn_mobilenet_v3_large_fpn", **FEW)


def task_mask_rcnn(torch):
    return _detected(torch, "maskrcnn_resnet50_fpn", masks=True, **FEW)


def task_keypoint_rcnn(torch):
    return _detected(torch, "keypointrcnn_resnet50_fpn", classes=2, points=3, **FEW)


def task_retinanet(torch):
    return _detected(torch, "retinanet_resnet50_fpn", min_size=96, max_size=128)


def task_fcos(torch):
    return _detected(torch, "fcos_resnet50_fpn", min_size=96, max_size=128)


def task_ssd(torch):
    return _detected(torch, "ssd300_vgg16")


def task_ssdlite(torch):
    return _detected(torch, "ssdlite320_mobilenet_v3_large")


def task_ops(torch):
    vision = torchvision_of(torch)
    corners = torch.tensor(shares(12, 2) * 40)
    boxes = torch.cat([corners, corners + torch.tensor(shares(12, 2, seed=1) * 20 + 4)], 1)
    others, ops = boxes.flip(0) + 3, vision.ops
    x = torch.tensor(numbers(2, 4, 16, 16), requires_grad=True)
    rois = [boxes[:5], boxes[5:]]
    cells = ops.roi_align(x, rois, (3, 2), 0.3, 2, True)
    cells.square().sum().backward()
    pooler = ops.MultiScaleRoIAlign(["a", "b"], 4, 2)
    levels = {"a": x.detach(), "b": x.detach()[:, :, ::2, ::2]}
    logits, labels = torch.tensor(numbers(4, 3)), torch.tensor(integers(2, 4, 3)).float()
    return {
        "cells": cells,
        "gradient": x.grad,
        "levels": pooler(levels, rois, [(64, 64), (60, 50)]),
        "kept": ops.nms(boxes, torch.tensor(shares(12)), 0.1),
        "by class": ops.batched_nms(
            boxes, torch.tensor(shares(12)), torch.tensor(integers(3, 12)), 0.1
        ),
        "iou": ops.box_iou(boxes, others),
        "generalized": ops.generalized_box_iou(boxes, others),
        "complete": ops.complete_box_iou_loss(boxes, others),
        "distance": ops.distance_box_iou_loss(boxes, others, reduction="mean"),
        "areas": ops.box_area(boxes),
        "converted": ops.box_convert(boxes, "xyxy", "cxcywh"),
        "clipped": ops.clip_boxes_to_image(boxes, (30, 40)),
        "masks": ops.masks_to_boxes(torch.tensor(shares(2, 8, 9)) > 0.9),
        "focal": ops.sigmoid_focal_loss(logits, labels, reduction="mean"),
        "stochastic": ops.stochastic_depth(x.detach(), 0.0, "row"),
        "squeezed": fill(ops.SqueezeExcitation(4, 2))(x.detach()),
        "frozen": ops.FrozenBatchNorm2d(4)(x.detach()),
    }


def task_segmentation_and_video(torch):
    vision = torchvision_of(torch)
    found = {}
    for name in ("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large"):
        build = getattr(vision.models.segmentation, name)
        model = fill(build(weights=None, weights_backbone=None, num_classes=3)).eval()
        found[name] = model(torch.tensor(numbers(1, 3, 64, 64)))["out"]
    model = fill(vision.models.video.r3d_18(weights=None, num_classes=4)).eval()
    found["video"] = model(torch.tensor(numbers(1, 3, 4, 32, 32)))
    return found


def _picture():
    from PIL import Image

    return Image.fromarray(integers(256, 20, 24, 3).astype(np.uint8))


def task_transforms_v1(torch):
    vision = torchvision_of(torch)
    T, F = vision.transforms, vision.transforms.functional
    x = torch.tensor(shares(3, 20, 24))
    found = {
        "tensor": T.ToTensor()(_picture()),
        "normal": T.Normalize([0.5] * 3, [0.2] * 3)(x),
        "resized": T.Resize(12, antialias=True)(x),
        "picture": T.ToTensor()(T.Resize(12)(_picture())),
        "center": T.CenterCrop(10)(x),
        "five": list(T.FiveCrop(8)(x)),
        "gray": T.Grayscale()(x),
        "padded": T.Pad(2, padding_mode="reflect")(x),
        "blurred": F.gaussian_blur(x, [5, 5], [1.1, 1.1]),
        "rotated": F.rotate(x, 30.0, interpolation=T.InterpolationMode.BILINEAR),
        "affine": F.affine(x, 20.0, [2, 3], 1.2, [5.0, 1.0]),
        "perspective": F.perspective(
            x, [[0, 0], [23, 0], [23, 19], [0, 19]], [[2, 1], [20, 2], [22, 18], [1, 17]]
        ),
        "erased": F.erase(x, 2, 3, 5, 6, torch.zeros(3, 5, 6)),
        "back": np.asarray(T.ToPILImage()(x)).astype(np.int64),
    }
    for name, amount in (
        ("brightness", 1.3), ("contrast", 0.7), ("saturation", 1.4), ("hue", 0.1),
        ("gamma", 0.8), ("sharpness", 1.5),
    ):  # fmt: skip
        found[name] = getattr(F, f"adjust_{name}")(x, amount)
    for name in ("equalize", "invert", "autocontrast"):
        data = x if name != "equalize" else (x * 255).to(torch.uint8)
        found[name] = getattr(F, name)(data)
    return found


def task_transforms_v2(torch):
    torchvision_of(torch)
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    image = tv_tensors.Image(torch.tensor(integers(256, 3, 20, 24).astype(np.uint8)))
    boxes = tv_tensors.BoundingBoxes(
        torch.tensor([[2.0, 3, 10, 12], [5, 1, 20, 18]]), format="XYXY", canvas_size=(20, 24)
    )
    mask = tv_tensors.Mask(torch.tensor(integers(2, 1, 20, 24)))
    steps = v2.Compose([
        v2.RandomHorizontalFlip(p=1.0), v2.CenterCrop(18), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.25] * 3), v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes(
            labels_getter=None),
    ])  # fmt: skip
    done = steps({"image": image, "boxes": boxes, "mask": mask})
    turned = v2.functional.rotate(boxes, 90.0)
    mixed = v2.functional.resize(image, [10, 12], antialias=True)
    return {
        "image": done["image"].as_subclass(torch.Tensor),
        "boxes": done["boxes"].as_subclass(torch.Tensor),
        "mask": done["mask"].as_subclass(torch.Tensor),
        "kinds": [type(done[name]).__name__ for name in ("image", "boxes", "mask")],
        "canvas": list(done["boxes"].canvas_size),
        "rotated": turned.as_subclass(torch.Tensor),
        "resized": mixed.as_subclass(torch.Tensor).float() / 256,
        "wrapped": type(tv_tensors.wrap(image + 1, like=image)).__name__,
        "plain": type(image + 1).__name__,
    }


def task_utilities(torch):
    vision = torchvision_of(torch)
    utils = vision.utils
    image = torch.tensor(integers(256, 3, 30, 40).astype(np.uint8))
    boxes = torch.tensor([[3, 4, 20, 25], [10, 2, 35, 20]])
    masks = torch.tensor(shares(2, 30, 40) > 0.7)
    points = torch.tensor([[[5, 6], [20, 12]], [[30, 20], [8, 25]]])
    data = vision.datasets.FakeData(3, (3, 8, 8), 5)
    loader = torch.utils.data.DataLoader(
        [(torch.tensor(shares(3, 8, 8, seed=i)), i) for i in range(6)], batch_size=4
    )
    return {
        "boxes": utils.draw_bounding_boxes(image, boxes, colors=["red", "blue"], width=2),
        "masks": utils.draw_segmentation_masks(image, masks, 0.5, colors=["red", "blue"]),
        "points": utils.draw_keypoints(image, points, colors="green", radius=2),
        "grid": utils.make_grid(torch.tensor(shares(5, 3, 8, 8)), nrow=2, normalize=True),
        "flow": utils.flow_to_image(torch.tensor(numbers(2, 8, 8))),
        "length": len(data),
        "batches": [x for x, _ in loader],
        "models": len(vision.models.list_models()),
    }


def task_feature_extraction(torch):
    torchvision_of(torch)
    from torchvision.models import resnet18
    from torchvision.models.feature_extraction import create_feature_extractor

    model = create_feature_extractor(fill(resnet18()), {"layer2": "middle"})
    return {"middle": model(torch.tensor(numbers(1, 3, 32, 32)))["middle"]}
