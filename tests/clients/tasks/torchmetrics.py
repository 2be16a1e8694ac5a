"""classification, regression, image, text, retrieval, detection, audio and clustering metrics,
updated in batches; MetricCollection, copies and state dicts."""

import numpy as np

from tests.clients.inputs import integers, numbers, shares
from tests.clients.vision_ops import torchvision_of

PACKAGES = "torchmetrics torchvision"


def _computed(metric, *batches):
    for batch in batches:
        metric.update(*batch)
    return metric.compute()


def task_classification(torch):
    import torchmetrics.classification as C

    scores = torch.tensor(shares(40, 5)).softmax(1)
    labels = torch.tensor(integers(5, 40))
    many = {"task": "multiclass", "num_classes": 5}
    found = {}
    for name in ("Accuracy", "Precision", "Recall", "F1Score", "Specificity", "JaccardIndex",
                 "CohenKappa", "MatthewsCorrCoef", "ConfusionMatrix", "AUROC", "AveragePrecision",
                 "CalibrationError", "HingeLoss", "StatScores", "HammingDistance"):  # fmt: skip
        metric = getattr(C, name)(**many)
        halves = (scores[:20], labels[:20]), (scores[20:], labels[20:])
        found[name] = _computed(metric, *halves)
    binary, truth = torch.tensor(shares(60)), torch.tensor(integers(2, 60, seed=1))
    for name in ("BinaryROC", "BinaryPrecisionRecallCurve"):
        found[name] = list(_computed(getattr(C, name)(thresholds=9), (binary, truth)))
    labelled = torch.tensor(integers(2, 40, 5, seed=2))
    for name in ("MultilabelAccuracy", "MultilabelF1Score", "MultilabelRankingLoss",
                 "MultilabelCoverageError"):  # fmt: skip
        found[name] = _computed(
            getattr(C, name)(num_labels=5), (torch.tensor(shares(40, 5)), labelled)
        )
    return found


def task_regression(torch):
    import torchmetrics.regression as R

    a, b = torch.tensor(numbers(50)), torch.tensor(numbers(50, seed=1))
    found = {}
    for name in ("MeanSquaredError", "MeanAbsoluteError", "R2Score", "PearsonCorrCoef",
                 "SpearmanCorrCoef", "KendallRankCorrCoef", "ExplainedVariance",
                 "ConcordanceCorrCoef", "SymmetricMeanAbsolutePercentageError", "LogCoshError",
                 "RelativeSquaredError"):  # fmt: skip
        found[name] = _computed(getattr(R, name)(), (a[:25], b[:25]), (a[25:], b[25:]))
    p, q = (torch.tensor(shares(6, 4, seed=s)).softmax(1) for s in (0, 1))
    found["KLDivergence"] = _computed(R.KLDivergence(), (p, q))
    found["CosineSimilarity"] = _computed(R.CosineSimilarity("mean"), (p, q))
    found["TweedieDevianceScore"] = _computed(R.TweedieDevianceScore(1.5), (p[:, 0], q[:, 0]))
    return found


def task_image(torch):
    import torchmetrics.image as I

    a = torch.tensor(shares(2, 3, 48, 48))
    b = (a + 0.1 * torch.tensor(numbers(2, 3, 48, 48))).clamp(0, 1)
    return {
        "psnr": _computed(I.PeakSignalNoiseRatio(data_range=1.0), (a, b)),
        "ssim": _computed(I.StructuralSimilarityIndexMeasure(data_range=1.0), (a, b)),
        "scales": _computed(
            I.MultiScaleStructuralSimilarityIndexMeasure(
                data_range=1.0, betas=(0.3, 0.7), kernel_size=7
            ),
            (a, b),
        ),
        "uqi": _computed(I.UniversalImageQualityIndex(), (a, b)),
        "variation": _computed(I.TotalVariation(), (a,)),
        "sam": _computed(I.SpectralAngleMapper(), (a, b)),
        "ergas": _computed(I.ErrorRelativeGlobalDimensionlessSynthesis(), (a, b)),
        "rmse": _computed(I.RootMeanSquaredErrorUsingSlidingWindow(), (a, b)),
    }


def task_text(torch):
    import torchmetrics.text as T

    said, meant = ["the cat sat on the mat", "hello word"], ["a cat sat on the mat", "hello world"]
    found = {}
    for name in (
        "WordErrorRate",
        "CharErrorRate",
        "MatchErrorRate",
        "WordInfoLost",
        "EditDistance",
    ):
        found[name] = _computed(getattr(T, name)(), (said, meant))
    found["BLEUScore"] = _computed(T.BLEUScore(2), (said, [[m] for m in meant]))
    found["CHRFScore"] = _computed(T.CHRFScore(), (said, [[m] for m in meant]))
    logits = torch.tensor(numbers(2, 5, 7))
    found["Perplexity"] = _computed(T.Perplexity(), (logits, torch.tensor(integers(7, 2, 5))))
    return found


def task_retrieval(torch):
    import torchmetrics.retrieval as R

    scores, hits = torch.tensor(shares(24)), torch.tensor(integers(2, 24))
    queries = torch.tensor(np.arange(24) // 6)
    found = {}
    for name in ("RetrievalMAP", "RetrievalMRR", "RetrievalNormalizedDCG", "RetrievalPrecision",
                 "RetrievalRecall", "RetrievalHitRate", "RetrievalFallOut"):  # fmt: skip
        metric = getattr(R, name)()
        metric.update(scores, hits, indexes=queries)
        found[name] = metric.compute()
    return found


def task_clustering(torch):
    import torchmetrics.clustering as K

    found = {}
    a, b = torch.tensor(integers(3, 30)), torch.tensor(integers(4, 30, seed=1))
    for name in ("MutualInfoScore", "RandScore", "AdjustedRandScore", "VMeasureScore"):
        found[name] = _computed(getattr(K, name)(), (a, b))
    return found


def task_detection(torch):
    torchvision_of(torch)
    from torchmetrics.detection import (
        CompleteIntersectionOverUnion,
        GeneralizedIntersectionOverUnion,
        IntersectionOverUnion,
    )

    corners = torch.tensor(shares(6, 2) * 30)
    boxes = torch.cat([corners, corners + 12], 1)
    labels = torch.tensor(integers(2, 6))
    said = [{"boxes": boxes, "scores": torch.tensor(shares(6)), "labels": labels}]
    meant = [{"boxes": boxes + 2, "labels": labels}]
    found = {}
    for metric in (
        IntersectionOverUnion,
        GeneralizedIntersectionOverUnion,
        CompleteIntersectionOverUnion,
    ):
        found |= _computed(metric(), (said, meant))
    return found


def task_audio(torch):
    import torchmetrics.audio as A

    a = torch.tensor(numbers(2, 800))
    b = a + 0.3 * torch.tensor(numbers(2, 800, seed=1))
    return {
        "snr": _computed(A.SignalNoiseRatio(), (b, a)),
        "sisnr": _computed(A.ScaleInvariantSignalNoiseRatio(), (b, a)),
        "sdr": _computed(A.SignalDistortionRatio(filter_length=64), (b, a)),
        "sisdr": _computed(A.ScaleInvariantSignalDistortionRatio(), (b, a)),
    }


def task_collections(torch):
    from torchmetrics import MaxMetric, MeanMetric, MetricCollection, SumMetric
    from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
    from torchmetrics.wrappers import MetricTracker

    metrics = MetricCollection({"top": MulticlassAccuracy(3), "f1": MulticlassF1Score(3)})
    scores, labels = torch.tensor(shares(30, 3)), torch.tensor(integers(3, 30))
    first = metrics(scores[:10], labels[:10])
    metrics.update(scores[10:], labels[10:])
    copy = metrics.clone(prefix="val_")
    mean = MeanMetric()
    mean.persistent(True)
    mean.update(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    again = MeanMetric()
    again.persistent(True)
    again.load_state_dict(mean.state_dict())
    tracker = MetricTracker(SumMetric(), maximize=True)
    for step in range(3):
        tracker.increment()
        tracker.update(torch.tensor([1.0, -step]))
    return {
        "first": first,
        "all": metrics.compute(),
        "copy": copy.compute(),
        "mean": again.compute(),
        "largest": _computed(MaxMetric(), (scores,)),
        "tracked": tracker.compute_all(),
        "best": tracker.best_metric(),
    }
