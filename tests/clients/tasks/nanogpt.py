"""A script like nanoGPT's: groups of AdamW, clipping, cosine, accumulation, checkpoint, sampling;
bfloat16, torch.compile, cropped blocks.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np

from tests.clients.inputs import fill, folder, integers, is_library

WORDS, BLOCK, WIDTH, HEADS = 48, 24, 32, 2


def model_of(torch):
    nn, F = torch.nn, torch.nn.functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.out = nn.Linear(WIDTH, WIDTH)
            mask = torch.tril(torch.ones(BLOCK, BLOCK)).view(1, 1, BLOCK, BLOCK)
            self.register_buffer("bias", mask)
            self.flash = hasattr(F, "scaled_dot_product_attention")

        def forward(self, x):
            batch, length, width = x.size()
            q, k, v = (
                part.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
                for part in self.qkv(x).split(width, dim=2)
            )
            if self.flash:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
                hidden = self.bias[:, :, :length, :length] == 0
                y = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
            return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.attention = nn.LayerNorm(WIDTH, bias=False), Attention()
            self.mlp = nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"),
                nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.0),
            )  # fmt: skip

        def forward(self, x):
            x = x + self.attention(self.before(x))
            return x + self.mlp(x)

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleDict(
                {
                    "words": nn.Embedding(WORDS, WIDTH),
                    "places": nn.Embedding(BLOCK, WIDTH),
                    "blocks": nn.ModuleList([Block() for _ in range(2)]),
                    "norm": nn.LayerNorm(WIDTH),
                }
            )
            self.head = nn.Linear(WIDTH, WORDS, bias=False)
            self.parts.words.weight = self.head.weight
            self.block_size = BLOCK
            self.apply(self.begin)

        def begin(self, module):
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

        def forward(self, words, targets=None):
            places = torch.arange(words.size(1), dtype=torch.long, device=words.device)
            x = self.parts.words(words) + self.parts.places(places)
            for block in self.parts.blocks:
                x = block(x)
            x = self.parts.norm(x)
            if targets is None:
                return self.head(x[:, [-1], :]), None
            logits = self.head(x)
            flat = logits.view(-1, logits.size(-1))
            return logits, F.cross_entropy(flat, targets.view(-1), ignore_index=-1)

        def optimizer(self, rate):
            found = {n: p for n, p in self.named_parameters() if p.requires_grad}
            groups = [
                {"params": [p for p in found.values() if p.dim() >= 2], "weight_decay": 0.1},
                {"params": [p for p in found.values() if p.dim() < 2], "weight_decay": 0.0},
            ]
            return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))

        @torch.no_grad()
        def generate(self, words, count, top_k=None):
            for _ in range(count):
                logits = self(words[:, -self.block_size :])[0][:, -1, :]
                if top_k is not None:
                    best, _ = torch.topk(logits, top_k)
                    logits[logits < best[:, [-1]]] = -float("inf")
                    chosen = torch.multinomial(logits.softmax(-1), num_samples=1)
                else:
                    chosen = logits.argmax(-1, keepdim=True)
                words = torch.cat((words, chosen), dim=1)
            return words

    return fill(GPT())


def batch_of(torch, data, rng):
    places = torch.from_numpy(rng.integers(0, len(data) - BLOCK, (4,)))
    return tuple(
        torch.stack(
            [torch.from_numpy(data[i + k : i + k + BLOCK].astype(np.int64)) for i in places]
        )
        for k in (0, 1)
    )


def task_training(torch):
    torch.manual_seed(1337)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    path = folder()
    integers(WORDS, 3000).astype(np.uint16).tofile(path / "train.bin")
    data = np.memmap(path / "train.bin", dtype=np.uint16, mode="r")
    rng = np.random.default_rng(1)
    model = model_of(torch)
    optimizer = model.optimizer(1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    losses, norms = [], []
    for step in range(10):
        rate = 1e-3 * (step + 1) / 4 if step < 4 else 5e-4 * (1 + math.cos(math.pi * step / 10))
        for group in optimizer.param_groups:
            group["lr"] = rate
        for _ in range(2):
            with nullcontext():
                _, loss = model(*batch_of(torch, data, rng))
            scaler.scale(loss / 2).backward()
        scaler.unscale_(optimizer)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "best": torch.tensor(1.5),
        "config": {"step": 10},
    }
    torch.save(state, path / "ckpt.pt")
    state = torch.load(path / "ckpt.pt", map_location="cpu")
    again = model_of(torch)
    again.load_state_dict(state["model"])
    other = again.optimizer(1e-3)
    other.load_state_dict(state["optimizer"])
    again.eval()
    start = torch.zeros(1, 1, dtype=torch.long)
    sampled = again.generate(start.repeat(2, 1), 6, top_k=5)
    return {
        "losses": losses,
        "norms": norms,
        "greedy": again.generate(start, BLOCK + 6),
        "sampled": tuple(sampled.shape),
        "moment": other.state_dict()["state"][0]["exp_avg"],
    }


def task_bfloat16(torch):
    model = model_of(torch)
    words, targets = (torch.tensor(integers(WORDS, 4, BLOCK, seed=s)) for s in (0, 1))
    with torch.amp.autocast(device_type="cpu", dtype=torch.bfloat16):
        logits, loss = model(words, targets)
    loss.backward()
    return {"is half": logits.dtype == torch.bfloat16, "near": round(float(loss), 1)}


def task_compile(torch):
    model = model_of(torch)
    words, targets = (torch.tensor(integers(WORDS, 4, BLOCK, seed=s)) for s in (0, 1))
    compiled = torch.compile(model) if is_library(torch) else model
    loss = compiled(words, targets)[1]
    loss.backward()
    return {"loss": loss, "gradient": model.head.weight.grad}


def task_cropped_block(torch):
    model = model_of(torch)
    model.parts.places.weight = torch.nn.Parameter(model.parts.places.weight[:16])
    for block in model.parts.blocks:
        block.attention.bias = block.attention.bias[:, :, :16, :16]
        block.attention.flash = False
    words = torch.tensor(integers(WORDS, 2, 16))
    return {"logits": model(words)[0], "count": sum(p.numel() for p in model.parameters())}
