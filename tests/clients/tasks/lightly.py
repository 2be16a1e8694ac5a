"""Losses and heads of self-supervised learning: SimCLR, BYOL, VICReg, Barlow twins, SwAV, DINO,
MoCo, NNCLR; momentum updates; a training step; views of pictures.
"""

from __future__ import annotations

import copy

import numpy as np

from tests.clients.inputs import fill, numbers, shares

PACKAGES = "lightly"
TIME_LIMIT_S = 600


def pair(torch):
    made = [torch.tensor(numbers(8, 16, seed=s), requires_grad=True) for s in (0, 1)]
    return made


def task_losses(torch):
    from lightly import loss

    found = {}
    for name, one in (
        ("ntxent", loss.NTXentLoss(temperature=0.2)),
        ("barlow", loss.BarlowTwinsLoss()),
        ("vicreg", loss.VICRegLoss()),
        ("cosine", loss.NegativeCosineSimilarity()),
        ("dcl", loss.DCLLoss()),
        ("tico", loss.TiCoLoss()),
    ):
        x, y = pair(torch)
        value = one(x, y)
        value.backward()
        found |= {name: value, f"{name} gradient": x.grad}
    swav = loss.SwaVLoss()
    x, y = (torch.nn.functional.normalize(t, dim=1) for t in pair(torch))
    found["swav"] = swav([x, y], [x * 0.5])
    return found


def task_dino(torch):
    from lightly.loss import DINOLoss

    loss = DINOLoss(output_dim=16, warmup_teacher_temp_epochs=2)
    teacher, student = pair(torch)
    value = loss([teacher, teacher * 2], [student, student * 2, student + 1], epoch=1)
    value.backward()
    return {"loss": value, "gradient": student.grad}


def task_training_with_momentum(torch):
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead
    from lightly.models.utils import deactivate_requires_grad, update_momentum

    nn = torch.nn
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = fill(nn.Sequential(body, BYOLProjectionHead(8, 16, 8)))
    head = fill(BYOLPredictionHead(8, 16, 8))
    slow = copy.deepcopy(model)
    deactivate_requires_grad(slow)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.06)
    loss_of, losses = NegativeCosineSimilarity(), []
    for _ in range(3):
        update_momentum(model, slow, m=0.9)
        x, y = (torch.tensor(numbers(8, 3, 12, 12, seed=s)) for s in (0, 1))
        loss = loss_of(head(model(x)), slow(y).detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "slow": next(slow.parameters())}


def task_views(torch):
    from lightly.transforms import SimCLRTransform
    from PIL import Image

    picture = Image.fromarray((shares(40, 40, 3) * 255).astype(np.uint8))
    made = SimCLRTransform(input_size=16)(picture)
    return {"number": len(made), "shape": tuple(made[0].shape), "dtype": str(made[0].dtype)[-7:]}
