"""fit, scikit-learn's Pipeline and GridSearchCV, pickles, saved parameters, callbacks."""

from __future__ import annotations

import pickle

from tests.clients.inputs import fill, folder, integers, numbers

PACKAGES = "skorch scikit-learn"


def _modules():
    import torch

    nn, F = torch.nn, torch.nn.functional

    class Net(nn.Module):
        def __init__(self, width=16):
            super().__init__()
            self.first, self.second = nn.Linear(8, width), nn.Linear(width, 3)
            fill(self)

        def forward(self, x):
            return F.softmax(self.second(F.relu(self.first(x))), dim=-1)

    Net.__qualname__ = "Net"  # pickle finds it here
    return Net


Net = _modules()


def classifier(**options):
    from skorch import NeuralNetClassifier

    options = {"max_epochs": 3, "lr": 0.1, "verbose": 0, "train_split": None, **options}
    return NeuralNetClassifier(Net, iterator_train__shuffle=False, **options)


def task_classifier(torch):
    x, y = numbers(60, 8), integers(3, 60)
    net = classifier().fit(x, y)
    path = folder()
    net.save_params(f_params=path / "p.pt", f_optimizer=path / "o.pt", f_history=path / "h.json")
    loaded = classifier().initialize()
    loaded.load_params(f_params=path / "p.pt", f_optimizer=path / "o.pt")
    return {
        "probabilities": net.predict_proba(x),
        "losses": net.history[:, "train_loss"],
        "loaded": loaded.predict_proba(x),
        "pickled": pickle.loads(pickle.dumps(net)).predict_proba(x),
        "score": net.score(x, y),
    }


def task_pipeline_and_search(torch):
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = numbers(60, 8), integers(3, 60)
    pipeline = Pipeline([("scale", StandardScaler()), ("net", classifier())]).fit(x, y)
    grid = {"lr": [0.1, 0.01], "module__width": [8, 16]}
    search = GridSearchCV(classifier(), grid, cv=2, scoring="neg_log_loss").fit(x, y)
    return {
        "predicted": pipeline.predict(x),
        "best": search.best_params_["module__width"],
        "scores": search.cv_results_["mean_test_score"],
        "crossed": cross_val_score(classifier(), x, y, cv=2),
    }


def task_callbacks(torch):
    from skorch import NeuralNetRegressor
    from skorch.callbacks import (
        Checkpoint,
        EarlyStopping,
        EpochScoring,
        GradientNormClipping,
        LRScheduler,
    )

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(8, 1)
            fill(self)

        def forward(self, x):
            return self.line(x)

    net = NeuralNetRegressor(
        Line, max_epochs=4, lr=0.05, verbose=0, iterator_train__shuffle=False,
        callbacks=[
            EarlyStopping(patience=3), Checkpoint(dirname=folder()), GradientNormClipping(1.0),
            LRScheduler("StepLR", step_size=2), EpochScoring("r2", lower_is_better=False),
        ],
    )  # fmt: skip
    net.fit(numbers(60, 8), numbers(60, 1, seed=2))
    return {"valid": net.history[:, "valid_loss"], "r2": net.history[:, "r2"]}
