"""Real clients, unchanged: `make clients` installs and runs them."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .installing import installed, reports
from .torch_tables import DIFFUSERS, TIMM, TORCHVISION, TRANSFORMERS

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
    "mobilenet_v3_small",
    "squeezenet1_1",
    "shufflenet_v2_x0_5",
    "ghostnet",
    "mnasnet0_5",
    "efficientnet_b0",
    "rexnetv1_1_0",
    "rexnet_lite_1_0",
    "mobilevit_xx_small",
    "regnet_x_400mf",
    "dla46x_c",
    "genet_small",
    "densenet121",
    "googlenet",
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
    "cswin_tiny_224",
    "crossformer_tiny_patch4_group7_224",
    "regionvit_tiny_224",
    "fan_tiny_12_p16_224",
    "fan_tiny_8_p4_hybrid",
    "mlp_mixer_s32_224",
    "gmlp_ti16_224",
    "resmlp_12_224",
    "deit_small_patch16_LS_224",
    "convmixer_768_32_relu",
    "iresnet50",
    "fcn_resnet50_coco",
    "lraspp_mobilenet_v3_large_coco",
    "deeplabv3_mobilenet_v3_large_coco",
    "ssdlite320_mobilenet_v3_large",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "fast_neural_style",
]
"""The smallest model of each family."""


def failed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [report for report in found if not report["ok"]]


def flowvision() -> str:
    needs = "rich six tabulate pillow pygments markdown-it-py scipy"
    return installed("flowvision==0.2.2", needs, from_source=True)


def test_flowvision_models_agree_with_pytorch() -> None:
    found = reports([flowvision()], ["tests.clients.flowvision_models", *FLOWVISION])
    assert len(found) == len(FLOWVISION)
    assert not failed(found)


def test_flowvision_transforms_and_layers_agree_with_pytorch() -> None:
    assert not failed(reports([flowvision()], ["tests.clients.flowvision_parts"]))


SCHEDULERS = (
    "DDIMScheduler PNDMScheduler EulerDiscreteScheduler DPMSolverMultistepScheduler "
    "LMSDiscreteScheduler UniPCMultistepScheduler HeunDiscreteScheduler"
)


@pytest.mark.parametrize(
    ("client", "needs", "models"),
    [
        (
            "transformers==5.23.0",
            HUB_NEEDS,
            ["llama", "llama_generate", "bert", "gpt2", "t5", "vit", "clip_text", *TRANSFORMERS],
        ),
        (
            "diffusers==0.42.1",
            f"{HUB_NEEDS} transformers==5.23.0",
            ["unet", "autoencoder", *SCHEDULERS.split(), *DIFFUSERS],
        ),
        ("timm==1.0.31", f"{HUB_NEEDS} torchvision", [f"timm.{name}" for name in TIMM]),
        ("torchvision==0.29.2", "pillow", [f"torchvision.{name}" for name in TORCHVISION]),
    ],
    ids=["transformers", "diffusers", "timm", "torchvision"],
)
def test_models_on_torch_names(client: str, needs: str, models: list[str], tmp_path: Path) -> None:
    path = installed(client, needs)
    program = "tests.clients.torch_names"
    for library in ("torch", "oneflow"):
        found = reports([path], [program, library, str(tmp_path), *models])
        assert len(found) == len(models)
        assert not failed(found)


LAYOUTS = ["2 1 1", "1 2 1", "1 1 2", "2 2 1", "2 1 2", "1 2 2", "2 2 2"]
"""Sizes of LiBai's data, tensor and pipeline parallel groups."""


@pytest.fixture(scope="module")
def libai() -> list[str]:
    needs = "omegaconf antlr4-python3-runtime==4.9.3 termcolor tabulate portalocker yacs regex"
    needs += " cloudpickle boto3 botocore jmespath s3transfer requests urllib3 certifi idna"
    needs += (
        " charset-normalizer wget sentencepiece jieba rich six pillow dill python-dateutil scipy"
    )
    path = installed("libai==0.1.1", needs, from_source=True)
    return [path, flowvision()]


def launched(program: list[str], ranks: int) -> list[str]:
    """The arguments that run a module on so many ranks of this host."""
    if ranks == 1:
        return program
    options = ["--standalone", "--nproc_per_node", str(ranks), "--log_line_prefix_template", ""]
    return ["oneflow.distributed.launch", *options, "-m", *program]


def losses_of(libai: list[str], model: str, mode: str, sizes: str = "1 1 1") -> list[float]:
    program = ["tests.clients.libai_models", model, mode, *sizes.split()]
    ranks = math.prod(int(size) for size in sizes.split())
    losses: list[float] = reports(libai, launched(program, ranks))[0]["losses"]
    return losses


MAIN_BRANCH = ["roberta", "resmlp", "swin_v2"]
"""Models that only LiBai's main branch has."""


def libai_with(model: str, libai: list[str]) -> list[str]:
    """The search path of a LiBai that has the model."""
    if model not in MAIN_BRANCH:
        return libai
    if "ONEFLOW_LIBAI_MAIN" not in os.environ:
        pytest.skip("ONEFLOW_LIBAI_MAIN does not say where LiBai's main branch lies")
    return [os.environ["ONEFLOW_LIBAI_MAIN"], *libai]


@pytest.mark.parametrize("model", ["gpt", "bert", "t5", "vit", "swin", *MAIN_BRANCH])
def test_libai_model_trains_the_same_as_a_graph(
    model: str, libai: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFLOW_DISABLE_VIEW", "1")  # Swin takes views that are copies
    path = libai_with(model, libai)
    eager, graph = (losses_of(path, model, mode) for mode in ("eager", "graph"))
    assert eager == pytest.approx(graph, rel=1e-4)
    assert eager[-1] < eager[0]


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("model", ["gpt", "bert", "t5", "vit", "swin", *MAIN_BRANCH])
def test_libai_model_has_one_curve_in_all_layouts(
    model: str, mode: str, libai: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFLOW_DISABLE_VIEW", "1")
    path = libai_with(model, libai)
    alone = losses_of(path, model, mode)
    for sizes in LAYOUTS:
        if model == "swin" and sizes.endswith("2"):
            continue  # this Swin has no stages
        assert losses_of(path, model, mode, sizes) == pytest.approx(alone, rel=1e-4)


STILL = [f"model.cfg.{n}_dropout_prob=0" for n in ("embedding", "attention", "output")]
SWITCHES = [
    "train.activation_checkpoint.enabled=True",
    "train.zero_optimization.enabled=True",
    "train.num_accumulation_steps=2",
]


def trained(libai: list[str], folder: Path, *overrides: str, ranks: int = 1) -> dict[str, float]:
    """Losses of LiBai's trainer by the iteration's number."""
    program = ["tests.clients.libai_trainer", str(folder), *overrides]
    losses: dict[str, float] = reports(libai, launched(program, ranks))[0]["losses"]
    return losses


@pytest.mark.parametrize(
    ("overrides", "ranks"),
    [
        ([], 1),
        ([*STILL, "graph.enabled=False"], 1),
        ([*STILL, "train.dist.tensor_parallel_size=2"], 2),
    ],
    ids=["graph with dropout", "eager", "tensor parallel"],
)
def test_libai_trainer_goes_on_from_its_checkpoint(
    overrides: list[str], ranks: int, libai: list[str], tmp_path: Path
) -> None:
    whole = trained(libai, tmp_path, *overrides, ranks=ranks)
    again = [*overrides, "train.resume=True", "resume_from=2"]
    rest = trained(libai, tmp_path, *again, ranks=ranks)
    assert rest == pytest.approx({k: v for k, v in whole.items() if int(k) > 2}, rel=1e-6)


def test_libai_trainer_with_its_switches_has_the_losses_without(
    libai: list[str], tmp_path: Path
) -> None:
    plain = trained(libai, tmp_path / "plain", *STILL, SWITCHES[-1])
    switched = trained(libai, tmp_path / "switched", *STILL, *SWITCHES)
    assert switched == pytest.approx(plain, rel=1e-5)
    halves = [*STILL, *SWITCHES, "train.train_micro_batch_size=2"]
    two = trained(libai, tmp_path / "two", *halves, ranks=2)
    four = [*halves, "train.dist.tensor_parallel_size=2"]
    assert trained(libai, tmp_path / "four", *four, ranks=4) == pytest.approx(two, rel=1e-5)


@pytest.mark.parametrize("text", ["bert", "t5"])
def test_libai_trainer_reads_masked_words(text: str, libai: list[str], tmp_path: Path) -> None:
    of_text = (f"text={text}", "train.train_iter=8")
    graph = trained(libai, tmp_path / "graph", *of_text)
    eager = trained(libai, tmp_path / "eager", *of_text, "graph.enabled=False")
    assert len(graph) == 8
    assert eager == pytest.approx(graph, rel=1e-5)


def test_libai_trainer_learns_in_half_precision(libai: list[str], tmp_path: Path) -> None:
    """The first steps overflow: LiBai's scale begins at 2 ** 30."""
    losses = trained(libai, tmp_path, *STILL, "train.amp.enabled=True", "train.train_iter=40")
    found = list(losses.values())
    assert len(found) == 40 and sum(found[-5:]) < sum(found[:5]) - 1.0


@pytest.mark.skipif(
    "ONEFLOW_MODELS" not in os.environ,
    reason="ONEFLOW_MODELS does not say where a checkout of Oneflow-Inc/models lies",
)
@pytest.mark.parametrize("model", ["resnet50", "wide_and_deep", "bert"])
def test_oneflow_models_train_as_on_pytorch(model: str) -> None:
    program = ["tests.clients.oneflow_models", os.environ["ONEFLOW_MODELS"], model]
    (found,) = reports([], program)
    assert found["eager"] == pytest.approx(found["torch"], rel=1e-5)
    assert found["graph"] == pytest.approx(found["torch"], rel=1e-5)


@pytest.mark.skipif(
    "ONEFLOW_YOLOV5" not in os.environ,
    reason="ONEFLOW_YOLOV5 does not say where a checkout of Oneflow-Inc/one-yolov5 lies",
)
def test_one_yolov5_trains_as_on_pytorch(tmp_path: Path) -> None:
    program = ["tests.clients.yolov5_model", os.environ["ONEFLOW_YOLOV5"]]
    ours, theirs = (
        reports([], [*program, library, str(tmp_path / "start.npz")])[0]
        for library in ("oneflow", "torch")
    )
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=1e-6)
    assert ours["found"][0] == theirs["found"][0]
    np.testing.assert_allclose(ours["found"][1], theirs["found"][1], rtol=1e-6)


@pytest.mark.skipif(
    "ONEFLOW_YOLOV5" not in os.environ,
    reason="ONEFLOW_YOLOV5 does not say where a checkout of Oneflow-Inc/one-yolov5 lies",
)
def test_one_yolov5_programs_run_unmodified(tmp_path: Path) -> None:
    """train.py, val.py and detect.py, whose checkpoints hold the model as an object."""
    needs = "numpy<2 pillow<10 pandas<3 opencv-python-headless<4.12 matplotlib<3.9 seaborn scipy"
    needs += " tqdm pyyaml requests psutil gitpython tensorboard tabulate rich setuptools<80"
    path = installed("flowvision==0.2.2", needs, from_source=True)
    program = ["tests.clients.yolov5_programs", os.environ["ONEFLOW_YOLOV5"], str(tmp_path)]
    (found,) = reports([path], program)
    assert len(found["losses"]) == 2 and all(0 < x < 1 for row in found["losses"] for x in row)
    assert found["validated"][0].split()[:3] == ["all", "4", "4"]
    assert found["images"] == sorted(f"{i}.png" for i in range(4))
    assert set(found["found"]) == {"0", "1", "2", "3"}


@pytest.mark.skipif(
    "ONEFLOW_CODEGEEX" not in os.environ,
    reason="ONEFLOW_CODEGEEX does not say where a checkout of THUDM/CodeGeeX lies",
)
def test_codegeex_writes_what_it_writes_on_pytorch() -> None:
    (found,) = reports([], ["tests.clients.codegeex_model", os.environ["ONEFLOW_CODEGEEX"]])
    theirs, ours = found["tokens"]
    assert ours == theirs and len(ours) == 31 and len(set(ours)) > 8
    assert found["logits"] < 2e-3  # both in half floats
    assert found["quantized"] < 1e-2


UPSTREAMS_FAILURES = {
    "test_activation.TestHardsigmoidModule.test_hardsigmoid_inplace",  # an argument NumPy dropped
    "test_argsort.TestArgsort.test_argsort",  # the order of equal numbers in an unstable sort
    "test_concat.TestModule.test_concat",  # compares different random numbers
    "test_dropout.TestModule.test_cpu_fixed_dropout",  # the numbers of upstream's generator
    "test_maxpool.TestMaxPooling.test_maxpool2d_channel_last",  # ONEFLOW_ENABLE_NHWC
}
"""Tests of upstream's that fail for another reason than a wrong value."""
UPSTREAMS_WRONG_CALLS = {
    "test_baddbmm.TestBaddBmmModule.profile_baddbmm",  # calls bmm with arguments of baddbmm
    "test_constant.TestConstantModule.profile_new_ones",  # of 10^12 numbers
    "test_constant.TestConstantModule.profile_new_zeros",
}
"""Methods to profile whose calls PyTorch refuses as well."""


@pytest.mark.skipif(
    "ONEFLOW_UPSTREAM" not in os.environ,
    reason="ONEFLOW_UPSTREAM does not say where a checkout of Oneflow-Inc/oneflow lies",
)
def test_upstreams_tests_of_ops_pass_and_are_profiled(tmp_path: Path) -> None:
    program = ["tests.clients.upstream_tests", os.environ["ONEFLOW_UPSTREAM"], str(tmp_path)]
    (found,) = reports([installed("packaging==24.2", "")], program)
    assert (found["files"], found["methods"]) == (69, 113)
    assert set(found["failed"]) <= UPSTREAMS_FAILURES and found["tests"] > 500
    assert set(found["raised"]) == UPSTREAMS_WRONG_CALLS
    assert found["rows"]["OneFlow"] == found["rows"]["PyTorch"] > 200


def test_tritonclient_asks_a_repository(tmp_path: Path) -> None:
    (found,) = reports([], ["tests.clients.triton_server", str(tmp_path)])
    assert found["http"] == found["grpc"] == {"error": 0.0, "rows": [5, 3], "versions": ["1", "2"],
                                              "missing": True, "unloaded": False}  # fmt: skip
    assert found["ended"] == 0


@pytest.fixture(scope="module")
def onediff() -> str:
    """Onediff and the diffusers for which it was written; attention and blocks are its own."""
    needs = "onediffx==1.2.0 diffusers==0.29.2 transformers==4.41.2 tokenizers==0.19.1"
    needs += " accelerate==0.31.0 peft==0.11.1 psutil omegaconf antlr4-python3-runtime==4.9.3"
    needs += " huggingface_hub==0.24.7 importlib-metadata==8.5.0 zipp requests packaging pyyaml"
    needs += " urllib3 charset-normalizer idna certifi regex pillow tqdm"
    return installed("onediff==1.2.0", needs)


def test_onediff_compiles_models_of_diffusers(onediff: str) -> None:
    models = ["unet", "attention", "autoencoder", "sdxl", "svd", "cached_image", "cached_video"]
    found = reports([onediff], ["tests.clients.onediff_models", *models])
    assert len(found) == len(models)
    assert not failed(found)


@pytest.mark.parametrize("steps", [("saved", "loaded"), ("saved_pipe", "loaded_pipe")])
def test_onediff_graphs_are_those_of_another_process(
    steps: tuple[str, str], onediff: str, tmp_path: Path
) -> None:
    for step in steps:
        found = reports([onediff], ["tests.clients.onediff_pipes", str(tmp_path), step])
        assert len(found) == 1
        assert not failed(found)


def test_onediff_example_makes_the_image_of_torch(onediff: str, tmp_path: Path) -> None:
    (found,) = reports([onediff], ["tests.clients.text_to_image", str(tmp_path)])
    assert max(found["differences"]) <= 1  # of 255
    assert found["graphs"] and found["spread"] > 20


@pytest.mark.skipif(
    "ONEFLOW_COMFYUI" not in os.environ,
    reason="ONEFLOW_COMFYUI does not say where a checkout of ComfyUI with onediff's nodes lies",
)
def test_onediff_nodes_of_comfyui_sample_as_torch(onediff: str) -> None:
    needs = "torchsde trampoline scipy safetensors sentencepiece torchvision torchaudio"
    needs += " kornia kornia_rs spandrel soundfile scikit-image imageio lazy-loader tifffile"
    needs += " aiohttp multidict yarl frozenlist aiosignal propcache attrs aiohappyeyeballs"
    comfy = installed("einops", needs)
    program = ["tests.clients.comfy_nodes", os.environ["ONEFLOW_COMFYUI"]]
    (found,) = reports([onediff, comfy], program)
    assert found["compiled"] == "MixedOneflowDeployableModule"
    assert max(found["differences"].values()) < 2e-3  # of half floats
