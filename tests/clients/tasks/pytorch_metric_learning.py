"""fifteen losses with gradients, miners, distances."""

from tests.clients.inputs import integers, numbers

PACKAGES = "pytorch-metric-learning"
LOSSES = (
    "ContrastiveLoss", "TripletMarginLoss", "NTXentLoss", "SupConLoss", "CircleLoss",
    "MultiSimilarityLoss", "AngularLoss", "LiftedStructureLoss", "GeneralizedLiftedStructureLoss",
    "IntraPairVarianceLoss", "MarginLoss", "NPairsLoss", "SignalToNoiseRatioContrastiveLoss",
    "TupletMarginLoss", "FastAPLoss",
)  # fmt: skip


def task_losses(torch):
    from pytorch_metric_learning import losses

    found = {}
    for name in LOSSES:
        x = torch.tensor(numbers(16, 8), requires_grad=True)
        loss = getattr(losses, name)()(x, torch.tensor(integers(4, 16)))
        loss.backward()
        found[name], found[f"{name} d x"] = loss, x.grad
    return found


def task_miners_and_distances(torch):
    from pytorch_metric_learning import distances, losses, miners

    x, labels = torch.tensor(numbers(16, 8), requires_grad=True), torch.tensor(integers(4, 16))
    found = {
        name: getattr(miners, name)()(x, labels)
        for name in ("MultiSimilarityMiner", "TripletMarginMiner", "BatchHardMiner",
                     "PairMarginMiner")
    }  # fmt: skip
    loss = losses.TripletMarginLoss(distance=distances.CosineSimilarity())
    found["loss"] = loss(x, labels, found["MultiSimilarityMiner"])
    found["loss"].backward()
    for name in ("LpDistance", "CosineSimilarity", "DotProductSimilarity", "SNRDistance"):
        found[name] = getattr(distances, name)()(x)
    return {**found, "d x": x.grad}
