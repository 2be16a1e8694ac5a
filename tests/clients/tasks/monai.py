"""3D UNet with Dice and cross entropy, three steps; sliding windows; metrics; transforms of arrays
and dictionaries with MetaTensor."""

import numpy as np

from tests.clients.inputs import fill, integers, numbers, shares

PACKAGES = "monai scipy einops"


def _unet(torch):
    from monai.networks.nets import UNet

    return fill(UNet(3, 1, 2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1))


def task_training(torch):
    from monai.losses import DiceCELoss

    model, loss_of = _unet(torch), DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.tensor(numbers(2, 1, 16, 16, 16))
    y = torch.tensor(integers(2, 2, 1, 16, 16, 16))
    losses = []
    for _ in range(3):
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses}


def task_losses_and_metrics(torch):
    import monai.losses as L
    import monai.metrics as M

    logits = torch.tensor(numbers(2, 3, 12, 12), requires_grad=True)
    labels = torch.tensor(integers(3, 2, 1, 12, 12))
    options = {"to_onehot_y": True, "softmax": True}
    found = {
        name: getattr(L, name)(**options)(logits, labels)
        for name in ("DiceLoss", "DiceFocalLoss", "TverskyLoss", "GeneralizedDiceLoss")
    }
    found["FocalLoss"] = L.FocalLoss(to_onehot_y=True)(logits, labels)
    sum(found.values()).backward()
    hard = torch.nn.functional.one_hot(logits.argmax(1), 3).permute(0, 3, 1, 2)
    truth = torch.nn.functional.one_hot(labels[:, 0], 3).permute(0, 3, 1, 2)
    return {
        **found,
        "d logits": logits.grad,
        "dice": M.compute_dice(hard, truth),
        "iou": M.compute_iou(hard, truth),
        "confusion": M.get_confusion_matrix(hard, truth),
        "surface": M.compute_hausdorff_distance(hard.float(), truth.float()),
    }


def task_sliding_window(torch):
    from monai.inferers import sliding_window_inference

    model = _unet(torch).eval()
    with torch.no_grad():
        x = torch.tensor(numbers(1, 1, 20, 18, 16))
        out = sliding_window_inference(x, (16, 16, 16), 2, model, overlap=0.25, mode="gaussian")
    return {"out": out}


def task_networks(torch):
    from monai.networks.nets import UNETR, AttentionUnet, DenseNet121, SegResNet

    x = torch.tensor(numbers(1, 1, 32, 32))
    nets = {
        "segresnet": SegResNet(2, 8, 1, 2),
        "attention": AttentionUnet(2, 1, 2, channels=(4, 8), strides=(2,)),
        "densenet": DenseNet121(2, 1, 3, init_features=8, growth_rate=4, block_config=(2, 2)),
        "unetr": UNETR(1, 2, (32, 32), 4, 24, 48, 4, spatial_dims=2),
    }
    return {name: fill(net).eval()(x) for name, net in nets.items()}


def task_transforms(torch):
    import monai.transforms as T
    from monai.data import MetaTensor

    image = shares(1, 20, 24)
    keys = ["image", "label"]
    steps = T.Compose([
        T.EnsureTyped(keys), T.Spacingd(keys, (2.0, 1.5), mode=("bilinear", "nearest")),
        T.ScaleIntensityd("image"), T.Flipd(keys, 0), T.SpatialPadd(keys, (16, 24)),
        T.CenterSpatialCropd(keys, (12, 12)),
    ])  # fmt: skip
    affine = torch.eye(3)
    data = {
        "image": MetaTensor(torch.tensor(image), affine=affine),
        "label": MetaTensor(torch.tensor((image > 0.5).astype(np.float32)), affine=affine),
    }
    done = steps(data)
    plain = torch.tensor(image)
    return {
        "image": done["image"].as_tensor(),
        "label": done["label"].as_tensor(),
        "affine": done["image"].affine,
        "kind": type(done["image"]).__name__,
        "pending": len(done["image"].applied_operations),
        "normal": T.NormalizeIntensity()(plain).as_tensor(),
        "resized": T.Resize((10, 12))(plain).as_tensor(),
        "rotated": T.Rotate(0.3)(plain).as_tensor(),
        "zoomed": T.Zoom(1.2)(plain).as_tensor(),
        "smooth": T.GaussianSmooth(1.0)(plain).as_tensor(),
        "contrast": T.AdjustContrast(1.5)(plain).as_tensor(),
        "hot": T.AsDiscrete(to_onehot=3)(torch.tensor(integers(3, 1, 6, 6))),
    }
