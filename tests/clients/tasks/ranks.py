"""Two processes on CPUs started by accelerate, lightning (ddp_spawn, Fabric), ignite, and torchrun
with the Trainer of transformers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np

from tests.clients.inputs import fill, folder, integers, is_library, numbers
from tests.clients.worker import MOCK_VERSION

PACKAGES = "accelerate lightning pytorch-ignite transformers"
TIME_LIMIT_S = 600


def model_of():
    from torch import nn

    return fill(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))


def data_of():
    import torch

    return torch.utils.data.TensorDataset(
        torch.tensor(numbers(32, 8)), torch.tensor(integers(3, 32))
    )


def loader_of():
    import torch

    return torch.utils.data.DataLoader(data_of(), batch_size=4)


def write(path, rank, **values):
    (path / f"{rank}.json").write_text(json.dumps(values))


def found_in(path):
    return {file.stem: json.loads(file.read_text()) for file in sorted(path.glob("*.json"))}


def accelerate_rank(path):
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader_of())
    losses, seen = [], []
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        seen += accelerator.gather_for_metrics(y).tolist()
    weight = accelerator.unwrap_model(model)[0].weight
    write(
        path, accelerator.process_index, losses=losses, seen=seen, weight=weight.tolist(),
        ranks=accelerator.num_processes,
    )  # fmt: skip


def task_accelerate(torch):
    from accelerate import debug_launcher

    path = folder()
    debug_launcher(accelerate_rank, args=(path,), num_processes=2)
    return found_in(path)


def task_lightning(torch):
    import lightning

    path = folder()

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = model_of()

        def training_step(self, batch, index):
            loss = torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
            self.log("loss", loss, sync_dist=True, on_epoch=True, on_step=False)
            return loss

        def train_dataloader(self):
            sampler = torch.utils.data.DistributedSampler(data_of(), shuffle=False)
            return torch.utils.data.DataLoader(data_of(), batch_size=4, sampler=sampler)

        def on_train_end(self):
            values = {name: float(v) for name, v in self.trainer.callback_metrics.items()}
            write(path, self.global_rank, weight=self.layers[0].weight.tolist(), **values)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp_fork", max_epochs=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        default_root_dir=path, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(Classifier())
    return found_in(path)


def fabric_rank(fabric, path):
    import torch

    model = model_of()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(loader_of())
    losses = []
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(fabric.all_reduce(loss.detach()).item())
    gathered = fabric.all_gather(torch.tensor([fabric.global_rank]))
    write(path, fabric.global_rank, losses=losses, gathered=np.asarray(gathered).tolist())


def task_fabric(torch):
    from lightning.fabric import Fabric

    path = folder()
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    fabric.launch(fabric_rank, path)
    return found_in(path)


def ignite_rank(rank, path):
    import ignite.distributed as idist
    import torch
    from ignite.engine import create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Accuracy, Loss

    model = idist.auto_model(model_of())
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    loss_of = torch.nn.functional.cross_entropy
    trainer = create_supervised_trainer(model, optimizer, loss_of)
    loader = idist.auto_dataloader(data_of(), batch_size=8, shuffle=False)
    trainer.run(loader, max_epochs=2)
    metrics = {"loss": Loss(loss_of), "accuracy": Accuracy()}
    evaluator = create_supervised_evaluator(model, metrics=metrics)
    evaluator.run(loader)
    write(path, rank, ranks=idist.get_world_size(), **evaluator.state.metrics)


def task_ignite(torch):
    import ignite.distributed as idist

    path = folder()
    idist.spawn("gloo", ignite_rank, args=(path,), nproc_per_node=2, start_method="fork")
    return found_in(path)


TRAINER = """
import sys
if {is_library}:
    from oneflow import mock_torch
    mock_torch.enable(lazy=True, mock_version={version!r})
from pathlib import Path
from tests.clients.tasks.ranks import trainer_rank
trainer_rank(Path(sys.argv[1]))
"""


def trainer_rank(path):
    import torch

    from tests.clients.tasks.transformers_trainer import logged, texts_of, trainer_of

    trainer = trainer_of(torch, path / "out", data=texts_of(torch, 32), num_train_epochs=1)
    trainer.train()
    rank = trainer.args.process_index
    weight = trainer.model.classifier.weight
    write(
        path, rank, losses=logged(trainer, "loss"), evaluated=logged(trainer, "eval_loss"),
        weight=weight.tolist(), ranks=trainer.args.world_size,
    )  # fmt: skip


def task_transformers_trainer(torch):
    path = folder()
    script = path / "script.py"
    script.write_text(TRAINER.format(is_library=is_library(torch), version=MOCK_VERSION))
    launcher = "oneflow.distributed.launch" if is_library(torch) else "torch.distributed.run"
    command = [sys.executable, "-m", launcher, "--nproc_per_node", "2", str(script), str(path)]
    if not is_library(torch):
        command.insert(3, "--standalone")
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    return found_in(path)
