"""a run without a network: scalars, histograms and images of arrays; watch of gradients; the same
values as tensors."""

from tests.clients.inputs import fill, folder, numbers, shares

PACKAGES = "wandb pillow"


def task_run(torch):
    import wandb

    where = folder()
    with wandb.init(mode="offline", dir=str(where), project="p", settings={"silent": True}) as run:
        model = fill(torch.nn.Linear(4, 2))
        run.watch(model, log="all", log_freq=1)
        for step in range(2):
            loss = model(torch.tensor(numbers(3, 4))).square().mean()
            loss.backward()
            weight = wandb.Histogram(model.weight.detach().numpy())
            run.log({"loss": loss.item(), "hist": weight, "step": step})
        picture = wandb.Image(shares(8, 9, 3))
        run.log({"picture": picture})
        told = float(run.summary["loss"])
    return {
        "loss": told,
        "size": list(picture.image.size),
        "written": len(list(where.rglob("*.wandb"))),
    }


def task_tensors(torch):
    import wandb

    with wandb.init(
        mode="offline", dir=str(folder()), project="p", settings={"silent": True}
    ) as run:
        run.log({"loss": torch.tensor(numbers(1))[0]})
        picture = wandb.Image(torch.tensor(shares(3, 8, 9)))
        return {"loss": float(run.summary["loss"]), "size": list(picture.image.size)}
