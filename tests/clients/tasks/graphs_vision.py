"""Forwards and three training steps in nn.Graph: three of timm, ResNet and DeepLab of torchvision,
a Unet of smp, CLIP of open_clip, UNet2D of diffusers, einops, kornia; Faster R-CNN is refused.
"""

from __future__ import annotations

from tests.clients.graph_steps import trained
from tests.clients.inputs import integers, numbers, shares

PACKAGES = "timm torchvision segmentation-models-pytorch open-clip-torch diffusers einops kornia"
TIME_LIMIT_S = 600
REFUSED = {"task_faster_rcnn": "sizes that depend on values"}


def pictures(torch, count=2):
    return torch.tensor(numbers(count, 3, 32, 32))


def task_timm_resnet(torch):
    import timm

    return trained(torch, timm.create_model("resnet18", num_classes=5), pictures(torch))


def task_timm_vit(torch):
    import timm

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "depth": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **sizes)
    return trained(torch, model, pictures(torch))


def task_timm_convnext(torch):
    import timm

    return trained(torch, timm.create_model("convnext_atto", num_classes=5), pictures(torch))


def task_resnet(torch):
    from torchvision.models import resnet18

    return trained(torch, resnet18(num_classes=4), pictures(torch), rate=1e-4)


def task_deeplab(torch):
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    model = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    return trained(torch, model, pictures(torch), rate=1e-4)


def task_unet(torch):
    import segmentation_models_pytorch as smp

    model = smp.Unet("resnet18", encoder_weights=None, classes=3)
    return trained(torch, model, pictures(torch), rate=1e-4)


def task_open_clip(torch):
    from open_clip import CLIP

    vision = {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32}
    text = {"context_length": 16, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
    model = CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text)
    words = torch.tensor(integers(63, 2, 16))
    return trained(torch, model, pictures(torch), words, pick=lambda out: out[:2])


def task_unet2d(torch):
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1,
        block_out_channels=(32, 64), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    x = torch.tensor(numbers(1, 3, 16, 16))
    return trained(torch, model, x, torch.tensor([3]), pick=lambda out: out.sample)


def task_einops(torch):
    from einops.layers.torch import Rearrange

    cut = Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
    model = torch.nn.Sequential(cut, torch.nn.Linear(48, 8))
    return trained(torch, model, torch.tensor(numbers(2, 3, 8, 8)))


def task_kornia(torch):
    import kornia

    class Blur(torch.nn.Module):
        def forward(self, x):
            return kornia.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5))

    return trained(torch, Blur(), torch.tensor(numbers(1, 3, 16, 16)), trains=False)


def task_faster_rcnn(torch):
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=4, min_size=96, max_size=128
    )
    picture = torch.tensor(shares(3, 96, 96))

    class Detector(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            found = self.model([x])[0]
            return found["boxes"], found["scores"], found["labels"].float()

    return trained(torch, Detector(), picture, trains=False)
