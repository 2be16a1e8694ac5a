"""attributions of a convolutional and of a linear model: gradients, Integrated Gradients, DeepLift,
occlusion, ablation, Shapley values, layers and neurons, Grad-CAM."""

from tests.clients.inputs import fill, numbers

PACKAGES = "captum"


def _model(torch):
    nn = torch.nn
    return fill(nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3),
    )).eval()  # fmt: skip


def task_gradients(torch):
    import captum.attr as A

    model, x = _model(torch), torch.tensor(numbers(2, 1, 10, 10), requires_grad=True)
    found, delta = A.IntegratedGradients(model).attribute(
        x, target=1, n_steps=12, return_convergence_delta=True
    )
    return {
        "saliency": A.Saliency(model).attribute(x, target=1),
        "product": A.InputXGradient(model).attribute(x, target=1),
        "guided": A.GuidedBackprop(model).attribute(x, target=1),
        "deconvolved": A.Deconvolution(model).attribute(x, target=1),
        "integrated": found,
        "delta": delta,
        "lift": A.DeepLift(model).attribute(x, target=1),
        "propagated": A.LRP(fill(torch.nn.Sequential(torch.nn.Linear(10, 3), torch.nn.ReLU())))
        .attribute(torch.tensor(numbers(2, 10)), target=1),
    }  # fmt: skip


def task_perturbations(torch):
    import captum.attr as A

    model, x = _model(torch), torch.tensor(numbers(2, 1, 10, 10))
    parts = torch.arange(100).reshape(1, 1, 10, 10) // 25
    return {
        "occlusion": A.Occlusion(model).attribute(x, (1, 4, 4), strides=(1, 2, 2), target=1),
        "ablation": A.FeatureAblation(model).attribute(x, target=1, feature_mask=parts),
        "shapley": A.ShapleyValues(model).attribute(
            x[:1], target=1, feature_mask=(parts > 1).long()
        ),
    }  # fmt: skip


def task_layers(torch):
    import captum.attr as A

    model, x = _model(torch), torch.tensor(numbers(2, 1, 10, 10), requires_grad=True)
    return {
        "activation": A.LayerActivation(model, model[3]).attribute(x),
        "conductance": A.LayerConductance(model, model[3]).attribute(x, target=1, n_steps=8),
        "cam": A.LayerGradCam(model, model[3]).attribute(x, target=1),
        "guided cam": A.GuidedGradCam(model, model[3]).attribute(x, target=1),
        "integrated": A.LayerIntegratedGradients(model, model[3]).attribute(x, target=1, n_steps=8),
        "neuron": A.NeuronGradient(model, model[3]).attribute(x, (1, 0, 0)),
        "upsampled": A.LayerAttribution.interpolate(
            A.LayerGradCam(model, model[3]).attribute(x, target=1), (10, 10)
        ),
    }
