"""TabNet's network: forward and backward; a classifier that fits, predicts and explains, by shapes;
a saved model that predicts as before."""

import numpy as np

from tests.clients.inputs import fill, integers, numbers

PACKAGES = "pytorch-tabnet pandas scikit-learn"


def task_network(torch):
    from pytorch_tabnet.tab_network import TabNet

    groups = torch.eye(6)
    net = fill(TabNet(6, 3, n_d=4, n_a=4, n_steps=2, group_attention_matrix=groups)).eval()
    x = torch.tensor(numbers(8, 6), requires_grad=True)
    out, sparsity = net(x)
    (out.square().mean() + sparsity).backward()
    return {"out": out, "sparsity": sparsity, "d x": x.grad}


def task_classifier(torch):
    from pytorch_tabnet.tab_model import TabNetClassifier

    from tests.clients.inputs import folder

    x, y = numbers(64, 6), integers(2, 64)
    model = TabNetClassifier(n_d=4, n_a=4, n_steps=2, verbose=0, seed=1)
    model.fit(x, y, max_epochs=2, batch_size=32, virtual_batch_size=16)
    path = model.save_model(str(folder() / "model"))
    again = TabNetClassifier(verbose=0)
    again.load_model(path)
    explained, masks = model.explain(x)
    return {
        "shape": list(model.predict_proba(x).shape),
        "explained": list(explained.shape),
        "masks": len(masks),
        "same": bool(np.allclose(model.predict_proba(x), again.predict_proba(x), atol=1e-6)),
        "rows add up to one": bool(np.allclose(model.predict_proba(x).sum(1), 1, atol=1e-5)),
    }
