"""Three training steps with ClipLoss; tokenizer; transforms; ViT-B-32 by its name."""

from __future__ import annotations

import numpy as np

from tests.clients.inputs import fill, integers, numbers, shares

PACKAGES = "open-clip-torch"

VISION = {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32}
TEXT = {"context_length": 16, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}


def task_training(torch):
    from open_clip import CLIP, ClipLoss

    model = fill(CLIP(embed_dim=16, vision_cfg=VISION, text_cfg=TEXT))
    with torch.no_grad():
        model.logit_scale.fill_(np.log(1 / 0.07))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-6)
    loss_of, losses = ClipLoss(), []
    pictures = torch.tensor(numbers(4, 3, 32, 32))
    words = torch.tensor(integers(63, 4, 16))
    for _ in range(3):
        loss = loss_of(*model(pictures, words))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.logit_scale.clamp_(0, np.log(100))
        losses.append(loss.item())
    return {"losses": losses, "scale": model.logit_scale}


def task_tokenizer_and_transforms(torch):
    import open_clip
    from PIL import Image

    picture = Image.fromarray((shares(40, 48, 3) * 255).astype(np.uint8))
    pixels = open_clip.image_transform(32, is_train=False)(picture)
    return {"words": open_clip.tokenize(["a photo of a cat", "a dog"]),
            "pixels": (pixels * 32).round() / 2000}  # fmt: skip


def task_named_model(torch):
    import open_clip

    model = open_clip.create_model("ViT-B-32", pretrained=None, force_image_size=64)
    fill(model).eval()
    with torch.no_grad():
        seen = model.encode_image(torch.tensor(numbers(1, 3, 64, 64)), normalize=True)
        read = model.encode_text(open_clip.tokenize(["a cat"]), normalize=True)
    return {"image": seen, "text": read}
