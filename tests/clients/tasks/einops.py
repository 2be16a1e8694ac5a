"""rearrange, reduce, repeat, einsum, pack and unpack; layers in a model that trains."""

from tests.clients.inputs import fill, numbers

PACKAGES = "einops"


def task_functions(torch):
    from einops import einsum, pack, rearrange, reduce, repeat, unpack

    x = torch.tensor(numbers(2, 4, 6, 3))
    packed, shapes = pack([x[:, 0], x[:, 0, 0]], "b * c")
    return {
        "rearrange": rearrange(x, "b (h p) w c -> b h (w p) c", p=2),
        "reduce": [reduce(x, "b h w c -> b c", how) for how in ("mean", "max", "sum", "prod")],
        "repeat": repeat(x, "b h w c -> b (2 h) w c"),
        "einsum": einsum(x, x, "b h w c, b h v c -> b h w v"),
        "pack": packed,
        "unpack": unpack(packed, shapes, "b * c"),
    }


def task_layers(torch):
    from einops.layers.torch import EinMix, Rearrange, Reduce

    model = torch.nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4),
        torch.nn.Linear(48, 8),
        EinMix("b t c -> b t d", weight_shape="c d", bias_shape="d", c=8, d=5),
        Reduce("b t d -> b d", "mean"),
    )
    fill(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = model(torch.tensor(numbers(2, 3, 8, 8))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "weight": model[1].weight}
