"""ten architectures on small encoders, forward and backward; seven losses; metrics."""

from tests.clients.inputs import fill, integers, numbers
from tests.clients.vision_ops import torchvision_of

PACKAGES = "segmentation-models-pytorch torchvision"
ARCHITECTURES = (
    "Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "PAN", "DeepLabV3",
    "DeepLabV3Plus", "UPerNet",
)  # fmt: skip


def task_architectures(torch):
    torchvision_of(torch)
    import segmentation_models_pytorch as smp

    found = {}
    for name in ARCHITECTURES:
        model = (
            fill(getattr(smp, name)("resnet18", encoder_weights=None, classes=2)).eval().double()
        )
        x = torch.tensor(numbers(1, 3, 128, 128)).double().requires_grad_()
        out = model(x)
        out.square().mean().backward()
        found[name], found[f"{name} d x"] = out, x.grad
    model = smp.Unet("timm-mobilenetv3_small_100", encoder_weights=None, classes=2)
    found["timm"] = fill(model).eval()(torch.tensor(numbers(1, 3, 64, 64)))
    return found


def task_losses_and_metrics(torch):
    torchvision_of(torch)
    import segmentation_models_pytorch as smp

    logits = torch.tensor(numbers(2, 3, 8, 8), requires_grad=True)
    labels = torch.tensor(integers(3, 2, 8, 8))
    losses = {
        name: getattr(smp.losses, f"{name}Loss")("multiclass")(logits, labels)
        for name in ("Dice", "Jaccard", "Focal", "Tversky", "Lovasz")
    }
    losses["SoftCrossEntropy"] = smp.losses.SoftCrossEntropyLoss(smooth_factor=0.1)(logits, labels)
    losses["MCC"] = smp.losses.MCCLoss()(logits[:, :1].sigmoid(), (labels > 1).float()[:, None])
    sum(losses.values()).backward()
    stats = smp.metrics.get_stats(logits.argmax(1), labels, mode="multiclass", num_classes=3)
    return {
        **losses,
        "d logits": logits.grad,
        "stats": list(stats),
        "iou": smp.metrics.iou_score(*stats, reduction="micro"),
        "f1": smp.metrics.f1_score(*stats, reduction="macro"),
    }
