"""Learner over its own loaders: fit, one cycle, predictions, export of weights; xresnet18."""

from __future__ import annotations

from tests.clients.inputs import fill, folder, integers, numbers

PACKAGES = "fastai"
TIME_LIMIT_S = 600
REFUSED = {"task_optimizer_in_the_file": "objects of a package's own class in a checkpoint"}


def learner(torch, **options):
    from fastai.data.core import DataLoaders
    from fastai.data.load import DataLoader
    from fastai.learner import Learner
    from fastai.losses import CrossEntropyLossFlat
    from fastai.metrics import accuracy

    pairs = [
        (torch.tensor(x), torch.tensor(y))
        for x, y in zip(numbers(32, 8), integers(3, 32), strict=True)
    ]
    loaders = DataLoaders(DataLoader(pairs, bs=8), DataLoader(pairs, bs=8))
    model = fill(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    )
    return Learner(
        loaders, model, loss_func=CrossEntropyLossFlat(), metrics=accuracy, path=folder(), **options
    )


def task_learner(torch):
    from fastai.callback.progress import ProgressCallback

    learn = learner(torch)
    assert learn.progress.__class__ is ProgressCallback
    with learn.no_bar(), learn.no_logging():
        learn.fit(2, 1e-2)
        predicted, targets = learn.get_preds()
        learn.save("weights", with_opt=False)
        fill(learn.model, seed=2)
        learn.load("weights", with_opt=False)
        valid = learn.validate()
    return {
        "weight": learn.model[0].weight,
        "predicted": predicted,
        "targets": targets,
        "valid": list(valid),
    }


def task_one_cycle_and_callbacks(torch):
    from fastai.callback.progress import ProgressCallback
    from fastai.callback.schedule import combined_cos
    from fastai.callback.tracker import EarlyStoppingCallback, SaveModelCallback
    from fastai.callback.training import GradientClip

    assert ProgressCallback and combined_cos  # both patch Learner
    learn = learner(torch, cbs=[GradientClip(1.0)])
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(2, 1e-2, cbs=[SaveModelCallback(), EarlyStoppingCallback(patience=2)])
    return {
        "weight": learn.model[0].weight,
        "losses": [float(one) for one in learn.recorder.losses],
        "rates": [float(one) for one in learn.recorder.lrs],
    }


def task_optimizer_in_the_file(torch):
    from fastai.callback.progress import ProgressCallback

    assert ProgressCallback  # its module patches Learner
    learn = learner(torch)
    with learn.no_bar(), learn.no_logging():
        learn.fit(1, 1e-2)
        learn.save("all")
        learn.load("all")
    return {"weight": learn.model[0].weight}


def task_xresnet(torch):
    from fastai.vision.all import TensorImage, xresnet18

    model = fill(xresnet18(n_out=4)).eval()
    x = torch.tensor(numbers(1, 3, 32, 32))
    picture = TensorImage(x)
    assert isinstance(picture + 1, TensorImage)
    return {"plain": model(x), "picture": model(picture) * 1.0}
