"""YOLOv8n of random weights: forward, loss and gradient, detections with suppression, predict()
of an array; segmentation and classification models."""

import numpy as np

from tests.clients.inputs import fill, integers, shares
from tests.clients.vision_ops import torchvision_of

PACKAGES = "ultralytics torchvision"
TIME_LIMIT_S = 600


def _model(torch, name="yolov8n.yaml"):
    torchvision_of(torch)
    from ultralytics import YOLO

    model = YOLO(name, verbose=False)
    fill(model.model)
    return model


def task_loss(torch):
    from ultralytics.cfg import get_cfg

    model = _model(torch).model
    model.args = get_cfg()
    batch = {
        "img": torch.tensor(shares(2, 3, 64, 64)),
        "batch_idx": torch.tensor([0.0, 0, 1]),
        "cls": torch.tensor([[1.0], [3], [0]]),
        "bboxes": torch.tensor(shares(3, 4) * 0.4 + 0.3),
    }
    loss, parts = model.train()(batch)
    loss.sum().backward()
    squares = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None)
    return {"loss": loss.sum(), "parts": parts, "gradient": squares.sqrt()}


def task_outputs(torch):
    found = {}
    for name in ("yolov8n.yaml", "yolov8n-seg.yaml", "yolov8n-cls.yaml"):
        model = _model(torch, name).model.eval()
        with torch.no_grad():
            out = model(torch.tensor(shares(1, 3, 64, 64)))
        found[name] = out[0] if isinstance(out, (tuple, list)) else out
    return found


def task_predict(torch):
    model = _model(torch)
    picture = integers(256, 96, 128, 3).astype(np.uint8)
    (result,) = model.predict(
        picture, conf=0.0, iou=0.5, imgsz=128, max_det=20, verbose=False, save=False
    )
    boxes = result.boxes
    order = boxes.xyxy.sum(1).argsort()
    return {"boxes": boxes.xyxy[order], "scores": boxes.conf, "count": len(boxes)}
