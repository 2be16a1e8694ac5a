"""ten small packages of models and optimizers: vit-pytorch, x-transformers with flash attention,
rotary embeddings, diffusion, neural ODEs, SSIM, averages of weights, four optimizers."""

import copy

import numpy as np

from tests.clients.inputs import fill, integers, numbers, shares

PACKAGES = """
vit-pytorch x-transformers rotary-embedding-torch denoising-diffusion-pytorch torchdiffeq
pytorch-msssim ema-pytorch lion-pytorch prodigyopt schedulefree
"""
TOLERANCE = 5e-4


def _trained(torch, model, optimizer, x, steps=4):
    losses = []
    for _ in range(steps):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses}


def task_vision_transformers(torch):
    from vit_pytorch import SimpleViT, ViT
    from vit_pytorch.cct import CCT

    x = torch.tensor(numbers(2, 3, 32, 32))
    nets = {
        "vit": ViT(
            image_size=32, patch_size=8, num_classes=5, dim=16, depth=2, heads=2, mlp_dim=32
        ),
        "simple": SimpleViT(
            image_size=32, patch_size=8, num_classes=5, dim=16, depth=2, heads=2, mlp_dim=32
        ),
        "cct": CCT(img_size=32, embedding_dim=16, n_conv_layers=1, num_layers=2, num_heads=2,
                   mlp_ratio=2, num_classes=5, positional_embedding="sine"),
    }  # fmt: skip
    return {name: fill(net).eval()(x) for name, net in nets.items()}


def task_x_transformers(torch):
    from x_transformers import Decoder, TransformerWrapper
    from x_transformers.autoregressive_wrapper import AutoregressiveWrapper

    found = {}
    for flash in (False, True):
        net = TransformerWrapper(
            num_tokens=20, max_seq_len=16,
            attn_layers=Decoder(dim=16, depth=2, heads=2, rotary_pos_emb=True, attn_flash=flash),
        )  # fmt: skip
        model = AutoregressiveWrapper(fill(net))
        words = torch.tensor(integers(20, 2, 12))
        loss = model(words)
        loss.backward()
        found[f"loss {flash}"] = loss
        found[f"gradient {flash}"] = net.token_emb.emb.weight.grad
        found[f"said {flash}"] = model.eval().generate(words[:, :4], 6, temperature=0.0)
    return found


def task_rotary(torch):
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=8)
    q, k = torch.tensor(numbers(1, 2, 6, 16)), torch.tensor(numbers(1, 2, 6, 16, seed=1))
    return {"q": rotary.rotate_queries_or_keys(q), "k": rotary.rotate_queries_or_keys(k)}


def task_diffusion(torch):
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    unet = fill(Unet(dim=8, dim_mults=(1, 2), flash_attn=False))
    diffusion = GaussianDiffusion(unet, image_size=16, timesteps=10)
    x, noise = torch.tensor(shares(2, 3, 16, 16)), torch.tensor(numbers(2, 3, 16, 16))
    loss = diffusion.p_losses(x * 2 - 1, torch.tensor([2, 7]), noise=noise)
    loss.backward()
    squares = sum(p.grad.square().sum() for p in unet.parameters() if p.grad is not None)
    return {"loss": loss, "gradient": squares.sqrt(), "betas": diffusion.betas}


def task_differential_equations(torch):
    from torchdiffeq import odeint, odeint_adjoint

    net = fill(torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)))

    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, t, y):
            return self.net(y)

    field, times = Field(), torch.linspace(0, 1, 5)
    start = torch.tensor(numbers(3, 2))
    found = {
        m: odeint(field, start, times, method=m) for m in ("dopri5", "rk4", "euler", "midpoint")
    }
    odeint_adjoint(field, start, times, rtol=1e-6, atol=1e-8)[-1].square().sum().backward()
    return {**found, "adjoint": net[0].weight.grad}


def task_similarity(torch):
    from pytorch_msssim import ms_ssim, ssim

    a = torch.tensor(shares(1, 3, 180, 180), requires_grad=True)
    b = torch.tensor(shares(1, 3, 180, 180, seed=1))
    found = {"ssim": ssim(a, b, data_range=1.0), "scales": ms_ssim(a, b, data_range=1.0)}
    (found["ssim"] + found["scales"]).backward()
    return {**found, "d a": a.grad}


def task_average_of_weights(torch):
    from ema_pytorch import EMA

    model = fill(torch.nn.Linear(6, 3))
    average = EMA(model, beta=0.9, update_after_step=0, update_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.tensor(numbers(4, 6))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update()
    return {"weight": average.ema_model.weight, "out": average(torch.tensor(numbers(4, 6)))}


def task_optimizers(torch):
    from lion_pytorch import Lion
    from prodigyopt import Prodigy
    from schedulefree import AdamWScheduleFree, SGDScheduleFree

    found, x = {}, torch.tensor(numbers(8, 6))
    for kind, options in (
        (Lion, {"lr": 1e-2, "weight_decay": 0.1}),
        (Prodigy, {}),
        (AdamWScheduleFree, {"lr": 1e-2}),
        (SGDScheduleFree, {"lr": 1e-1}),
    ):
        model = fill(torch.nn.Linear(6, 3))
        optimizer = kind(model.parameters(), **options)
        if hasattr(optimizer, "train"):
            optimizer.train()
        found[kind.__name__] = _trained(torch, model, optimizer, x)["losses"]
        found[f"{kind.__name__} state"] = len(copy.deepcopy(optimizer.state_dict())["state"])
        if hasattr(optimizer, "eval"):
            optimizer.eval()
        found[f"{kind.__name__} weight"] = np.array(model.weight.detach().tolist())
    return found
