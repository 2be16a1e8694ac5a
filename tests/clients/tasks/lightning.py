"""Trainer: fit, validate, test, predict, callbacks, checkpoint, resume, accumulation; bfloat16;
two optimizers by hand; a data module; Fabric.
"""

from __future__ import annotations

from tests.clients.inputs import fill, folder, integers, numbers

PACKAGES = "lightning"
TIME_LIMIT_S = 600


def loader_of(torch, seed=0, batch_size=8):
    data = torch.utils.data
    pairs = data.TensorDataset(
        torch.tensor(numbers(40, 8, seed=seed)), torch.tensor(integers(3, 40, seed=seed))
    )
    return data.DataLoader(pairs, batch_size=batch_size)


def module_of(torch):
    import lightning

    nn, F = torch.nn, torch.nn.functional

    class Classifier(lightning.LightningModule):
        def __init__(self, width=16, rate=1e-2):
            super().__init__()
            self.save_hyperparameters()
            self.layers = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))
            self.losses = []
            fill(self)

        def forward(self, x):
            return self.layers(x)

        def training_step(self, batch, index):
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.log("train", loss, prog_bar=True, on_epoch=True)
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch, index):
            self.log("valid", F.cross_entropy(self(batch[0]), batch[1]))

        def test_step(self, batch, index):
            self.log("test", F.cross_entropy(self(batch[0]), batch[1]))

        def predict_step(self, batch, index):
            return self(batch[0]).argmax(-1)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": schedule}

    return Classifier


def trainer_of(path, **options):
    import lightning

    return lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=path, **options,
    )  # fmt: skip


def task_fit_test_predict_resume(torch):
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    path, Classifier = folder(), module_of(torch)
    keeper = ModelCheckpoint(path, monitor="valid", save_top_k=2, save_last=True)
    model = Classifier()
    trainer = trainer_of(
        path, max_epochs=3, gradient_clip_val=1.0,
        callbacks=[keeper, EarlyStopping("valid", patience=3)],
    )  # fmt: skip
    trainer.fit(model, loader_of(torch), loader_of(torch, 1))
    validated = trainer.validate(model, loader_of(torch, 1), verbose=False)[0]["valid"]
    tested = trainer.test(model, loader_of(torch, 2), verbose=False)[0]["test"]
    predicted = trainer.predict(model, loader_of(torch, 2))
    loaded = Classifier.load_from_checkpoint(keeper.best_model_path)
    again = Classifier()
    longer = trainer_of(path, max_epochs=4)
    longer.fit(again, loader_of(torch), loader_of(torch, 1), ckpt_path=keeper.last_model_path)
    return {
        "losses": model.losses,
        "validated": validated,
        "tested": tested,
        "predicted": torch.cat(predicted),
        "best": keeper.best_model_score,
        "loaded": loaded.layers[0].weight,
        "width": loaded.hparams.width,
        "resumed": again.losses,
        "rate": longer.optimizers[0].param_groups[0]["lr"],
    }


def task_accumulation_bfloat16_summary(torch):
    import lightning

    Classifier = module_of(torch)
    model = Classifier()
    trainer_of(folder(), max_epochs=2, accumulate_grad_batches=2, enable_checkpointing=False).fit(
        model, loader_of(torch)
    )
    half = Classifier()
    trainer_of(folder(), max_epochs=1, precision="bf16-mixed", enable_checkpointing=False).fit(
        half, loader_of(torch)
    )
    summary = lightning.pytorch.utilities.model_summary.ModelSummary(model)
    return {
        "losses": model.losses,
        "near": [round(loss, 1) for loss in half.losses],
        "parameters": summary.total_parameters,
    }


def task_two_optimizers_by_hand_and_a_data_module(torch):
    import lightning

    nn, F = torch.nn, torch.nn.functional

    class Data(lightning.LightningDataModule):
        def train_dataloader(self):
            return loader_of(torch)

    class Two(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)
            self.losses = []
            fill(self)

        def training_step(self, batch, index):
            one, two = self.optimizers()
            for optimizer in (one, two):
                self.toggle_optimizer(optimizer)
                loss = F.cross_entropy(self.second(self.first(batch[0]).relu()), batch[1])
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
                self.untoggle_optimizer(optimizer)
                self.losses.append(loss.item())

        def configure_optimizers(self):
            return [
                torch.optim.Adam(self.first.parameters(), lr=1e-2),
                torch.optim.SGD(self.second.parameters(), lr=1e-1),
            ]

    model = Two()
    trainer_of(folder(), max_epochs=1, enable_checkpointing=False).fit(model, Data())
    return {"losses": model.losses}


def task_fabric(torch):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    fabric.seed_everything(1)
    model = fill(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    )
    model, optimizer = fabric.setup(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    loader = fabric.setup_dataloaders(loader_of(torch))
    losses = []
    for x, y in loader:
        with fabric.no_backward_sync(model, enabled=False), fabric.autocast():
            loss = torch.nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    path = folder() / "state.ckpt"
    fabric.save(path, {"model": model, "optimizer": optimizer, "step": 5})
    fill(model, seed=3)
    state = {"model": model, "optimizer": optimizer, "step": 0}
    fabric.load(path, state)
    return {
        "losses": losses,
        "step": state["step"],
        "weight": model.module[0].weight if hasattr(model, "module") else model[0].weight,
        "gathered": fabric.all_gather(loss),
        "reduced": fabric.all_reduce(loss),
    }
