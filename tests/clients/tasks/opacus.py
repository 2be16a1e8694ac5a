"""Gradients of each sample by hooks and by torch.func; private training in three modes."""

from __future__ import annotations

from tests.clients.inputs import fill, integers, numbers

PACKAGES = "opacus"
TIME_LIMIT_S = 600


def net(torch):
    layers = torch.nn
    return fill(
        layers.Sequential(
            layers.Conv2d(1, 3, 3), layers.ReLU(), layers.Flatten(), layers.Linear(3 * 36, 4)
        )
    )


def task_gradients_of_samples(torch):
    from opacus import GradSampleModule

    x, y = torch.tensor(numbers(5, 1, 8, 8)), torch.tensor(integers(4, 5))
    found = {}
    for mode in ("hooks", "functorch"):
        model = GradSampleModule(net(torch), force_functorch=mode == "functorch")
        torch.nn.functional.cross_entropy(model(x), y).backward()
        found[mode] = [p.grad_sample for p in model.parameters()]
    return found


def task_private_training(torch):
    from opacus import PrivacyEngine

    data = torch.utils.data.TensorDataset(
        torch.tensor(numbers(20, 1, 8, 8)), torch.tensor(integers(4, 20))
    )
    loader = torch.utils.data.DataLoader(data, batch_size=5)
    found = {}
    for mode in ("hooks", "functorch", "ghost"):
        model, loss = net(torch), torch.nn.CrossEntropyLoss()
        model, optimizer, *more, batches = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=loader,
            noise_multiplier=0.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=mode,
            **({"criterion": loss} if mode == "ghost" else {}),
        )
        (loss,) = more or (loss,)
        losses = found[mode] = []
        for x, y in batches:
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            optimizer.step()
            losses.append(value.item())
    return found


def task_recurrent_and_attention(torch):
    from opacus import GradSampleModule
    from opacus.layers import DPLSTM, DPMultiheadAttention

    x = torch.tensor(numbers(4, 6, 8))
    recurrent = GradSampleModule(fill(DPLSTM(8, 5, batch_first=True)))
    recurrent(x)[0].square().mean(1).sum().backward()
    attention = GradSampleModule(fill(DPMultiheadAttention(8, 2)), batch_first=False)
    turned = x.transpose(0, 1)
    attention(turned, turned, turned)[0].square().sum().backward()
    named = dict(attention.named_parameters())
    named.pop("_module.klinear.bias")  # a bias of keys moves all scores alike: its gradient is 0
    return {
        "recurrent": [p.grad_sample for p in recurrent.parameters()],
        "attention": [p.grad_sample for p in named.values()],
    }
