"""A script like minGPT's: a trainer with callbacks over a sampler of ten thousand million draws,
decay by kind of module, additions of numbers.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tests.clients.inputs import fill, integers


class Trainer:
    """The loop of minGPT: an endless sampler, callbacks, clipped gradients."""

    def __init__(self, torch, model, dataset, steps):
        self.torch, self.model, self.dataset, self.steps = torch, model, dataset, steps
        self.callbacks = defaultdict(list)

    def run(self, optimizer):
        data = self.torch.utils.data
        sampler = data.RandomSampler(self.dataset, replacement=True, num_samples=int(1e10))
        loader = data.DataLoader(self.dataset, sampler=sampler, batch_size=8, pin_memory=True)
        stream = iter(loader)
        self.model.train()
        for step in range(self.steps):
            try:
                x, y = next(stream)
            except StopIteration:
                stream = iter(loader)
                x, y = next(stream)
            self.shape = tuple(x.shape)
            x, y = (t.to("cpu") for t in self.fixed(step))
            self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            for callback in self.callbacks["on_batch_end"]:
                callback(self)

    def fixed(self, step):
        """Draw the batch that both libraries take."""
        pairs = [self.dataset[i] for i in integers(len(self.dataset), 8, seed=step)]
        return tuple(self.torch.stack([pair[k] for pair in pairs]) for k in (0, 1))


def task_adder(torch):
    nn, F = torch.nn, torch.nn.functional

    class Additions(torch.utils.data.Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            a, b = divmod(int(index), 10)
            digits = [a, b, *divmod(a + b, 10)]
            x, y = (torch.tensor(d, dtype=torch.long) for d in (digits[:-1], digits[1:]))
            y[:1] = -1
            return x, y

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(10, 24), nn.Embedding(3, 24)
            self.layer = nn.TransformerEncoderLayer(24, 2, 48, 0.0, batch_first=True)
            self.head = nn.Linear(24, 10, bias=False)

        def forward(self, x, y):
            mask = nn.Transformer.generate_square_subsequent_mask(3)
            h = self.words(x) + self.places.weight.unsqueeze(0)
            logits = self.head(self.layer(h, src_mask=mask, is_causal=True))
            return F.cross_entropy(logits.view(-1, 10), y.view(-1), ignore_index=-1)

        def groups(self):
            decay, rest = set(), set()
            for name, module in self.named_modules():
                for key, _ in module.named_parameters(recurse=False):
                    full = f"{name}.{key}" if name else key
                    is_weight = key.endswith("weight") and isinstance(module, nn.Linear)
                    (decay if is_weight else rest).add(full)
            found = dict(self.named_parameters())
            assert not decay & rest and decay | rest == found.keys()
            return [
                {"params": [found[n] for n in sorted(names)], "weight_decay": rate}
                for names, rate in ((decay, 0.1), (rest, 0.0))
            ]

    model = fill(Model())
    trainer = Trainer(torch, model, Additions(), 12)
    losses = []
    trainer.callbacks["on_batch_end"].append(lambda t: losses.append(t.loss.item()))
    trainer.run(torch.optim.AdamW(model.groups(), lr=5e-3, betas=(0.9, 0.95)))
    assert np.isfinite(losses).all()
    return {"losses": losses, "shape": trainer.shape, "head": model.head.weight}
