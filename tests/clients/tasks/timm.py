"""A training step with seven optimizers, schedule, EMA, Mixup and soft targets; data: transforms,
loader, RandAugment; features, layer decay.
"""

from __future__ import annotations

import numpy as np

from tests.clients.inputs import fill, folder, integers, numbers, shares

PACKAGES = "timm"
TIME_LIMIT_S = 600


def model_of(name="resnet10t", **options):
    import timm

    return fill(timm.create_model(name, num_classes=5, **options))


def vit(**options):
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "depth": 2}
    return model_of("vit_tiny_patch16_224", **sizes, **options)


def steps_with(torch, optimizer_name, **options):
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2

    model = vit()
    optimizer = create_optimizer_v2(
        model, opt=optimizer_name, lr=1e-2, weight_decay=0.01, **options
    )
    loss_of = SoftTargetCrossEntropy()
    x, targets = torch.tensor(numbers(4, 3, 16, 16)), torch.tensor(shares(4, 5)).softmax(-1)
    losses = []
    for _ in range(4):
        loss = loss_of(model(x), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def task_optimizers(torch):
    names = ("sgd", "adamw", "lamb", "lars", "adafactor", "lion", "nadamw", "adan", "madgradw")
    return {name: steps_with(torch, name) for name in names}


def task_muon_near(torch):
    """Its products are in bfloat16."""
    return {"losses": np.round(steps_with(torch, "muon"), 1)}


def task_step_with_all(torch):
    from timm.data import Mixup
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import ModelEmaV2, ModelEmaV3, accuracy, dispatch_clip_grad

    model = model_of()
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, layer_decay=0.8)
    schedule = CosineLRScheduler(optimizer, t_initial=6, warmup_t=2, warmup_lr_init=1e-5)
    second, third = ModelEmaV2(model, decay=0.9), ModelEmaV3(model, decay=0.9)
    mixup = Mixup(mixup_alpha=0.2, prob=0.0, label_smoothing=0.1, num_classes=5)
    x, y = torch.tensor(numbers(4, 3, 32, 32)), torch.tensor(integers(5, 4))
    losses, rates = [], []
    for step in range(4):
        mixed, targets = mixup(x, y)
        out = model(mixed)
        loss = torch.sum(-targets * out.log_softmax(-1), dim=-1).mean()
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model.parameters(), 1.0, mode="norm")
        optimizer.step()
        second.update(model)
        third.update(model, step=step)
        schedule.step(step + 1)
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
    weights = {name: net.fc.weight for name, net in
               (("model", model), ("second", second.module), ("third", third.module))}  # fmt: skip
    return {"losses": losses[:3], "rates": rates, **weights,
            "accuracy": accuracy(out, y, topk=(1, 2))}  # fmt: skip


def task_data(torch):
    from PIL import Image
    from timm.data import ImageDataset, create_loader, create_transform, resolve_model_data_config

    path = folder()
    for label in ("cat", "dog"):
        (path / label).mkdir()
        for place in range(3):
            pixels = (shares(40, 48, 3, seed=place) * 255).astype(np.uint8)
            Image.fromarray(pixels).save(path / label / f"{place}.png")
    config = resolve_model_data_config(model_of())
    data = ImageDataset(str(path))
    loader = create_loader(
        data,
        (3, 32, 32),
        batch_size=3,
        use_prefetcher=False,
        num_workers=0,
        persistent_workers=False,
    )
    x, y = next(iter(loader))
    augment = create_transform((3, 32, 32), is_training=True, auto_augment="rand-m9-mstd0.5")
    made = augment(Image.open(path / "cat" / "0.png"))
    return {
        "pictures": (x * 64).round() / 2000,  # resized in uint8
        "labels": y,
        "shape": tuple(made.shape),
        "mean": config["mean"],
    }


def task_features_and_pooling(torch):
    model = model_of(features_only=True, out_indices=(1, 2))
    x = torch.tensor(numbers(1, 3, 32, 32))
    model.eval()
    whole = vit().eval()
    small = torch.tensor(numbers(2, 3, 16, 16))
    return {
        "maps": model(x),
        "tokens": whole.forward_features(small),
        "head": whole.forward_head(whole.forward_features(small), pre_logits=True),
        "inner": whole.forward_intermediates(small, indices=1, intermediates_only=True),
    }


def task_checkpoint(torch):
    from timm.utils import CheckpointSaver

    model = vit()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    path = folder()
    CheckpointSaver(model, optimizer, checkpoint_dir=str(path)).save_checkpoint(0, 0.5)
    from timm.models import load_checkpoint

    again = fill(vit(), seed=5)
    load_checkpoint(again, str(path / "last.pth.tar"))
    return {"weight": again.head.weight}
