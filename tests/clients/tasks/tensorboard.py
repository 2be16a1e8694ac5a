"""SummaryWriter: scalars read back; histograms, images and text; curves of precision and recall."""

from tests.clients.inputs import fill, folder, numbers, shares

PACKAGES = "tensorboard pillow"
REFUSED = {"task_curve": "add_pr_curve"}


def task_summaries(torch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    where = str(folder())
    with SummaryWriter(where) as writer:
        model = fill(torch.nn.Linear(4, 2))
        for step in range(3):
            writer.add_scalar("loss", torch.tensor(numbers(3))[step], step)
            writer.add_histogram("weight", model.weight, step, bins=8)
        writer.add_image("picture", torch.tensor(shares(3, 8, 9)))
        writer.add_images("pictures", torch.tensor(shares(2, 3, 8, 9)))
        writer.add_text("words", "some words")
    events = EventAccumulator(where, size_guidance={"tensors": 0, "histograms": 0})
    events.Reload()
    tags = events.Tags()  # histograms and images are of another plugin's form than PyTorch's
    written = {*tags["tensors"], *tags["histograms"], *tags["images"]}
    return {
        "loss": [event.value for event in events.Scalars("loss")],
        "steps": [event.step for event in events.Scalars("loss")],
        "written": sorted(tag.partition("/")[0] for tag in written),
    }


def task_curve(torch):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder())) as writer:
        writer.add_pr_curve("curve", torch.tensor([0, 1, 1]), torch.tensor([0.2, 0.6, 0.9]))
    return {"written": True}
