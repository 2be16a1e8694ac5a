"""summary of a convolutional model with shapes, parameters and multiply-adds."""

PACKAGES = "torchinfo"


def task_summary(torch):
    from torchinfo import summary

    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    told = summary(
        model, input_size=(2, 3, 16, 16), verbose=0, col_names=["output_size", "num_params"]
    )
    return {
        "parameters": told.total_params,
        "trainable": told.trainable_params,
        "mult adds": told.total_mult_adds,
        "text": str(told),
    }
