"""Supervised trainer and evaluator with metrics, handlers, checkpoints; schedules; idist."""

from __future__ import annotations

from tests.clients.inputs import fill, folder, integers, numbers

PACKAGES = "pytorch-ignite"


def model_of(torch):
    nn = torch.nn
    return fill(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))


def loader_of(torch):
    data = torch.utils.data
    pairs = data.TensorDataset(torch.tensor(numbers(40, 8)), torch.tensor(integers(3, 40)))
    return data.DataLoader(pairs, batch_size=8)


def task_trainer_and_evaluator(torch):
    from ignite import metrics
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.handlers import EarlyStopping, ModelCheckpoint, Timer

    model, loss_of = model_of(torch), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = create_supervised_trainer(model, optimizer, loss_of, device="cpu")
    metrics.RunningAverage(output_transform=lambda out: out).attach(trainer, "mean")
    wanted = {
        "accuracy": metrics.Accuracy(), "loss": metrics.Loss(loss_of),
        "precision": metrics.Precision(), "recall": metrics.Recall(),
        "confusion": metrics.ConfusionMatrix(3), "top": metrics.TopKCategoricalAccuracy(2),
    }  # fmt: skip
    evaluator = create_supervised_evaluator(model, metrics=wanted, device="cpu")
    losses = []
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output)
    )
    keeper = ModelCheckpoint(folder(), "m", n_saved=2, require_empty=False)
    trainer.add_event_handler(
        Events.EPOCH_COMPLETED, keeper, {"model": model, "optimizer": optimizer}
    )
    stopper = EarlyStopping(3, lambda engine: -engine.state.metrics["loss"], trainer)
    evaluator.add_event_handler(Events.COMPLETED, stopper)
    timer = Timer()
    timer.attach(trainer)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda _: evaluator.run(loader_of(torch)))
    trainer.run(loader_of(torch), max_epochs=3)
    again = model_of(torch)
    ModelCheckpoint.load_objects(
        {"model": again, "optimizer": optimizer}, checkpoint=str(keeper.last_checkpoint)
    )
    return {
        "losses": losses,
        "running": trainer.state.metrics["mean"],
        "metrics": evaluator.state.metrics,
        "loaded": again[0].weight,
        "is timed": timer.value() > 0,
    }


def task_schedules_and_idist(torch):
    import ignite.distributed as idist
    from ignite.engine import Events, create_supervised_trainer
    from ignite.handlers import CosineAnnealingScheduler, LRScheduler

    model = idist.auto_model(model_of(torch))
    optimizer = idist.auto_optim(torch.optim.Adam(model.parameters(), lr=0.1))
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.cross_entropy)
    cosine = CosineAnnealingScheduler(optimizer, "lr", 0.1, 0.01, 10)
    rates = []
    trainer.add_event_handler(Events.ITERATION_STARTED, cosine)
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda _: rates.append(optimizer.param_groups[0]["lr"])
    )
    trainer.run(idist.auto_dataloader(loader_of(torch).dataset, batch_size=8), max_epochs=1)
    steps = LRScheduler(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
    return {
        "rates": rates,
        "rank": idist.get_rank(),
        "world": idist.get_world_size(),
        "device": str(idist.device()),
        "gathered": idist.all_gather(torch.tensor([1.0, 2.0])),
        "step": steps.get_param(),
    }
