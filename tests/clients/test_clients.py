"""Real clients, unchanged: `make clients` installs and runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .installing import installed, reports

pytestmark = [pytest.mark.client, pytest.mark.timeout(5400)]

HUB_NEEDS = (
    "huggingface_hub httpx2 httpcore2 truststore anyio h11 idna certifi requests urllib3 "
    "charset-normalizer regex tokenizers typer shellingham click hf-xet rich pygments "
    "markdown-it-py mdurl pillow importlib-metadata zipp scipy"
)

FLOWVISION = [
    "alexnet",
    "resnet18",
    "vit_tiny_patch16_224",
    "mobilenet_v2",
    "squeezenet1_1",
    "shufflenet_v2_x0_5",
    "ghostnet",
    "mnasnet0_5",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "rexnetv1_1_0",
    "rexnet_lite_1_0",
    "mobilevit_xx_small",
    "regnet_y_400mf",
    "dla46_c",
    "genet_small",
    "densenet121",
    "res2net50_26w_4s",
    "resnest50",
    "se_resnet50",
    "hrnet_w18_small",
    "pvt_tiny",
    "poolformer_s12",
    "levit_128s",
    "van_tiny",
    "uniformer_small",
    "convnext_tiny_224",
    "swin_tiny_patch4_window7_224",
    "crossformer_tiny_patch4_group7_224",
    "fan_tiny_12_p16_224",
    "mlp_mixer_s32_224",
    "resmlp_12_224",
    "deit_small_patch16_LS_224",
    "fast_neural_style",
]
"""The smallest model of each family."""


def failed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [report for report in found if not report["ok"]]


def test_flowvision_models_agree_with_pytorch() -> None:
    path = installed(
        "flowvision==0.2.2", "rich six tabulate pillow pygments markdown-it-py", from_source=True
    )
    found = reports([path], ["tests.clients.flowvision_models", *FLOWVISION])
    assert len(found) == len(FLOWVISION)
    assert not failed(found)


@pytest.mark.parametrize(
    ("client", "needs", "models"),
    [
        ("transformers==5.23.0", HUB_NEEDS, "llama bert gpt2 t5 vit clip_text"),
        (
            "diffusers==0.42.1",
            f"{HUB_NEEDS} transformers==5.23.0",
            "unet autoencoder DDIMScheduler PNDMScheduler EulerDiscreteScheduler "
            "DPMSolverMultistepScheduler LMSDiscreteScheduler UniPCMultistepScheduler",
        ),
        (
            "timm==1.0.31",
            f"{HUB_NEEDS} torchvision",
            "timm.resnet18 timm.vit_tiny_patch16_224 timm.mobilenetv3_small_050 "
            "timm.efficientnet_b0 timm.convnext_atto timm.deit_tiny_patch16_224",
        ),
    ],
)
def test_models_on_torch_names(client: str, needs: str, models: str, tmp_path: Path) -> None:
    path = installed(client, needs)
    program = "tests.clients.torch_names"
    for library in ("torch", "oneflow"):
        found = reports([path], [program, library, str(tmp_path), *models.split()])
        assert len(found) == len(models.split())
        assert not failed(found)


@pytest.mark.parametrize("model", ["gpt", "bert", "t5"])
def test_libai_model_trains_the_same_as_a_graph(model: str) -> None:
    needs = "omegaconf antlr4-python3-runtime==4.9.3 termcolor tabulate portalocker yacs regex"
    needs += " cloudpickle boto3 botocore jmespath s3transfer requests urllib3 certifi idna"
    needs += " charset-normalizer wget sentencepiece jieba rich six pillow dill python-dateutil"
    path = installed("libai==0.1.1", needs, from_source=True)
    vision = installed(
        "flowvision==0.2.2", "rich six tabulate pillow pygments markdown-it-py", from_source=True
    )
    eager, graph = (
        reports([path, vision], ["tests.clients.libai_models", model, mode, "1", "1", "1"])[0]
        for mode in ("eager", "graph")
    )
    assert eager["losses"] == pytest.approx(graph["losses"], rel=1e-4)
    assert eager["losses"][-1] < eager["losses"][0]
