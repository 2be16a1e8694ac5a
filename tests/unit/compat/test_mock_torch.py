"""`import torch` meaning oneflow, and PyTorch again."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import oneflow as flow
from oneflow.compat.torch.mock.dependants import dependants
from oneflow.compat.torch.mock.switching import MockEnableDisableMixin, _importer
from oneflow.core.errors import OneFlowError
from oneflow.mock_torch import DummyModule, disable, enable, is_enabled, mock
from oneflow.mock_torch.__main__ import FOLDER, main

REAL = torch


@pytest.fixture(autouse=True)
def _real_again() -> Iterator[None]:
    yield
    disable()
    assert sys.modules["torch"] is REAL


def test_a_block_means_oneflow_and_the_code_after_it_pytorch() -> None:
    with enable():
        assert is_enabled()
        import torch
        import torch.nn.functional as F
        from torch import nn
        from torch.utils.data import DataLoader

        assert torch.__package__ == "oneflow" and torch.ones(2).is_local
        assert nn.Linear is flow.nn.Linear and F.relu is flow.relu
        assert DataLoader is flow.utils.data.DataLoader
        assert torch.nn is nn
    assert not is_enabled()
    import torch

    assert torch is REAL


def test_the_object_of_release_0_9() -> None:
    with mock.enable():
        import torch

        assert torch.__package__ == "oneflow" and mock.is_enabled()
    mock(lazy=True)
    assert importlib.import_module("torch").float32 is flow.float32
    mock.disable()
    assert importlib.import_module("torch") is REAL


def test_calls_without_a_block_hold_until_the_other_one() -> None:
    enable()
    assert importlib.import_module("torch").float32 is flow.float32
    with disable():
        assert importlib.import_module("torch") is REAL
    assert importlib.import_module("torch").float32 is flow.float32
    disable()
    assert importlib.import_module("torch") is REAL


def test_global_names_of_the_caller_change_with_it() -> None:
    names: dict[str, Any] = {"__name__": "script"}
    exec("import torch\nfrom oneflow import mock_torch as mock", names)
    exec("with mock.enable():\n    inside = torch.ones(1)\noutside = torch.ones(1)", names)
    assert isinstance(names["inside"], flow.Tensor) and isinstance(names["outside"], REAL.Tensor)


def test_a_missing_name_is_an_error() -> None:
    with enable():
        import torch

        with pytest.raises(AttributeError, match=r"'torch', which is 'oneflow' .* 'no_such'.*lazy"):
            torch.no_such  # noqa: B018
        with pytest.raises(ImportError, match=r"'no_such' from .*lazy=True"):
            from torch import no_such  # noqa: F401
        with pytest.raises(ModuleNotFoundError, match=r"torch\.no_such'.*torch --lazy") as caught:
            importlib.import_module("torch.no_such")
        assert caught.value.name == "torch.no_such"
        assert importlib.util.find_spec("torch.no_such") is None
        with pytest.raises(ModuleNotFoundError, match=r"send_object"):
            importlib.import_module("torch.distributed.rpc")


def test_lazily_a_missing_name_fails_when_it_is_used() -> None:
    with enable(lazy=True):
        import torch
        import torch.no_such.below as below
        from torch.nn import Missing

        assert isinstance(torch.no_such, DummyModule) and isinstance(below, DummyModule)
        assert not hasattr(torch, "no_such_function")
        assert getattr(torch, "no_such_function", 3) == 3
        assert not isinstance(1, Missing) and not Missing
        with pytest.raises(OneFlowError, match=r"oneflow\.nn\.Missing is used"):
            Missing(1)
        with pytest.raises(OneFlowError, match=r"oneflow\.no_such\.f is used"):
            torch.no_such.f + 1
        with pytest.raises(OneFlowError, match=r"distributed\.rpc\.x is used.*send_object"):
            torch.distributed.rpc.x(1)

        class Derived(Missing):
            pass

        with pytest.raises(OneFlowError, match=r"oneflow\.nn\.Missing"):
            Derived()


def package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package written for PyTorch, of two files."""
    (folder / "written_for_torch").mkdir()
    (folder / "written_for_torch/__init__.py").write_text("from .layers import Net\n")
    (folder / "written_for_torch/layers.py").write_text(
        "import torch\nfrom torch.no_such import marked, Kind\n\n"
        "CONSTANT = torch.missing_constant(3)\n\n"
        "class Net(torch.nn.Module):\n"
        "    @marked(kind=Kind.A)\n    def special(self):\n        pass\n\n"
        "    def forward(self, x):\n        return torch.relu(x)\n"
    )
    monkeypatch.syspath_prepend(str(folder))


def test_a_package_of_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, monkeypatch)
    with enable(lazy=True):
        ours = importlib.import_module("written_for_torch")
        assert issubclass(ours.Net, flow.nn.Module)
        assert ours.Net()(flow.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    assert "written_for_torch" not in sys.modules
    with enable(lazy=True):
        assert importlib.import_module("written_for_torch") is ours
    with pytest.raises(ModuleNotFoundError, match="no_such"):
        importlib.import_module("written_for_torch")  # now for the real PyTorch


def test_one_package_on_oneflow_beside_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, monkeypatch)
    found: Any = flow.mock_torch.DynamicMockModule.from_package("written_for_torch")
    assert issubclass(found.layers.Net, flow.nn.Module)
    assert not is_enabled()
    found.hijack("written_for_torch.Net", 5)
    assert found.Net == 5


def test_what_a_package_depends_on_is_imported_anew_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`main` requires `middle`, which requires torch; `aside` does not."""
    for name, needs in (
        ("mock_main", ["mock-middle>=1.0; extra == 'x'", "mock_aside"]),
        ("mock_middle", ["torch", "mock_main"]),
        ("mock_aside", []),
    ):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        lines = [f"Requires-Dist: {need}" for need in needs]
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n" + "\n".join(lines) + "\n")
        (tmp_path / f"{name}.py").write_text("import torch\n" * (name != "mock_aside"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert dependants("mock_main", frozenset({"torch"})) == ("mock_middle",)
    before = [importlib.import_module(f"mock_{n}") for n in ("main", "middle", "aside")]
    with enable(main_pkg="mock_main"):
        inside = [importlib.import_module(f"mock_{n}") for n in ("main", "middle", "aside")]
        assert _importer.enable
        assert {"mock_main", "mock_middle"} <= set(_importer.delete_list)
    assert not _importer.enable and _importer.delete_list == []
    assert [a is b for a, b in zip(before, inside, strict=True)] == [False, False, True]
    assert inside[1].torch.ones is flow.ones and before[1].torch is REAL
    monkeypatch.setattr(MockEnableDisableMixin, "hazard_list", ["mock_main"])
    with enable(main_pkg="mock_main", mock_version="9.9"):  # in which it was never imported
        assert importlib.import_module("mock_main") is before[0]


def test_other_libraries_beside_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stand_in.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with enable(extra_dict={"somelib": "stand_in"}):
        assert importlib.import_module("somelib").answer == 42
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("somelib")
    with pytest.raises(ValueError, match="must be a dict"):
        enable(extra_dict=["somelib"])  # type: ignore[arg-type]


def test_the_version_that_programs_are_told() -> None:
    with enable(mock_version="2.1.0"):
        assert importlib.import_module("torch").__version__ == "2.1.0"
        assert importlib.metadata.version("torch") == "2.1.0"
    installed = importlib.metadata.version("torch")
    with enable(mock_version=True):
        assert importlib.import_module("torch").__version__ == flow.__version__
        assert importlib.metadata.version("torch") == installed
    assert importlib.metadata.version("torch").split("+")[0] == REAL.__version__.split("+")[0]


def test_libraries_of_ops_in_cpp_are_refused_as_packages_expect() -> None:
    with enable():
        import torch

        with pytest.raises(OSError, match="cannot be loaded"):
            torch.ops.load_library("_C.so")


def test_settings_reach_ours() -> None:
    with enable():
        import torch

        torch.set_by_a_script = 7
        assert flow.set_by_a_script == 7
        del flow.set_by_a_script


def test_a_shell_that_evaluates_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--lazy"])
    line = capsys.readouterr().out.strip()
    assert "export ONEFLOW_MOCK_TORCH_LAZY=True" in line and FOLDER in line
    code = "import torch; print(torch.__package__, torch.no_such, torch.nn.Linear)"
    environment = {**os.environ, "PYTHONPATH": FOLDER, "ONEFLOW_MOCK_TORCH_LAZY": "True"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout.startswith("oneflow <oneflow.no_such"), done.stderr
    off = {**environment, "ONEFLOW_DISABLE_MOCK_TORCH": "1"}
    code = "import torch; print(torch.__package__)"
    assert _printed(code, off).strip() == "torch"


def test_optimizers_have_pytorchs_defaults() -> None:
    weights = [flow.ones(1, requires_grad=True)]
    with enable():
        from torch import optim

        made = optim.AdamW(weights), optim.Adagrad(weights), optim.RMSprop(weights)
        assert optim.AdamW(weights, 0.1, weight_decay=0.5).defaults["weight_decay"] == 0.5
    assert isinstance(made[0], flow.optim.AdamW)
    assert [o.defaults["lr"] for o in made] == [0.001, 0.01, 0.01]
    assert made[0].defaults["weight_decay"] == 0.01
    assert flow.optim.AdamW(weights).defaults["weight_decay"] == 0


def trained(library: Any, kind: str) -> list[float]:
    """Return numbers that follow PyTorch's defaults: of weights, one of which is used only once."""
    weights = [library.tensor([1.0, -2.0], requires_grad=True) for _ in range(2)]
    options = {"SGD": {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}, "Adam": {"lr": 0.1}}
    optimizer = getattr(library.optim, kind)(weights, **options.get(kind, {"eps": 0.1}))
    rates = library.optim.lr_scheduler
    first, second = rates.ExponentialLR(optimizer, 0.9), rates.StepLR(optimizer, 2, 0.5)
    schedule = rates.SequentialLR(optimizer, [first, second], [3])
    model = library.nn.ParameterList(weights)
    for step in range(6):
        loss = (weights[0] ** 2).sum() + (weights[1].sum() if step == 0 else 0.0)
        loss.backward()
        optimizer.step()
        schedule.step()
        (model if step % 2 else optimizer).zero_grad()
    return [*(x for w in weights for x in w.tolist()), schedule.get_last_lr()[0]]


@pytest.mark.parametrize("kind", ["SGD", "RMSprop", "Adagrad", "Adam", "AdamW"])
def test_programs_of_pytorch_train_by_its_defaults(kind: str) -> None:
    with enable():
        found = trained(importlib.import_module("torch"), kind)
    assert found == pytest.approx(trained(REAL, kind), rel=1e-5)
    assert trained(flow, kind) != pytest.approx(found, rel=1e-3)


def test_arguments_by_position_are_those_of_pytorch() -> None:
    def run(library: Any) -> list[Any]:
        x, y = library.tensor([1.0, 2.0, 0.0]), library.tensor([1.001, 2.1, 1e-3])
        optimizer = library.optim.SGD([library.ones(1, requires_grad=True)], lr=1.0)
        schedule = library.optim.lr_scheduler.PolynomialLR(optimizer, 4, 2.0)
        rates = []
        for _ in range(5):
            rates.append(round(schedule.get_last_lr()[0], 9))
            optimizer.step()
            schedule.step()
        found = [library.isclose(x, y, 1e-2, 1e-9), x.isclose(y, 1e-9, 1e-2)]
        pooled = library.nn.functional.max_pool1d(library.ones(1, 1, 5), 2, 2, 0, 1, True)
        close = library.allclose(x[:2], y[:2], 0.1, 0.0)
        return [*(f.tolist() for f in (*found, pooled)), close, rates]

    with enable():
        found = run(importlib.import_module("torch"))
    assert found == run(REAL)
    close = flow.isclose(flow.tensor([0.0]), flow.tensor([1e-3]), 1e-2, 1e-9)
    assert close.tolist() == [True]  # OneFlow's order: atol first


def test_layers_and_averages_of_pytorchs_programs_have_its_defaults() -> None:
    def run(library: Any) -> list[Any]:
        norm = library.nn.RMSNorm(2)
        swa = importlib.import_module(f"{library.__name__}.optim.swa_utils")
        mean = swa.get_ema_multi_avg_fn(0.5)
        average = swa.AveragedModel(norm, None, None, mean, True)
        return [norm.eps, norm(library.tensor([[1e-4, 0.0]])).tolist(), average.use_buffers,
                average.multi_avg_fn is mean]  # fmt: skip

    with enable():
        found = run(importlib.import_module("torch"))
    wanted = run(REAL)
    assert found[0] is wanted[0] is None and found[2:] == wanted[2:]
    assert found[1][0] == pytest.approx(wanted[1][0], rel=1e-5)
    assert flow.nn.RMSNorm(2).eps == 1e-5


def test_a_module_of_pytorchs_is_run() -> None:
    """`python -m torch.distributed.run` is the launcher under torchrun's flags."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([FOLDER, *sys.path])}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=3",
        "--print_config",
    ]
    done = subprocess.run([*command, "a.py"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"nproc_per_node +3 ", done.stdout)


def test_a_shell_that_turns_it_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/a:{FOLDER}:/b")
    main(["disable"])
    assert "export PYTHONPATH=/a:/b; unset ONEFLOW_MOCK_TORCH_LAZY" in capsys.readouterr().out


def _printed(code: str, environment: dict[str, str]) -> str:
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_passes_over_loaders_of_others_have_the_members_of_pytorchs() -> None:
    """A subclass says how a batch is made; torchdata's resumes in the middle of a pass so."""
    with enable():
        from torch.utils.data import DataLoader
        from torch.utils.data._utils.fetch import _DatasetKind
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        class Pass(_BaseDataLoaderIter):
            def __init__(self, loader: DataLoader) -> None:
                super().__init__(loader)
                self.fetcher = _DatasetKind.create_fetcher(
                    self._dataset_kind, self._dataset, self._auto_collation, self._collate_fn,
                    self._drop_last,
                )  # fmt: skip

            def _next_data(self) -> flow.Tensor:
                made: flow.Tensor = self.fetcher.fetch(self._next_index())
                return made

        loader = DataLoader(list(range(7)), batch_size=3)
        found = Pass(loader)
        assert [batch.tolist() for batch in found] == [[0, 1, 2], [3, 4, 5], [6]]
        assert (len(found), found._num_yielded, found._timeout, found._num_workers) == (3, 3, 0, 0)
        found._reset(loader)
        assert next(found).tolist() == [0, 1, 2]
        assert isinstance(iter(loader), _BaseDataLoaderIter)

        class Loader(DataLoader):
            def __init__(self, data: list[int]) -> None:  # as torchdata's: without the parent's
                vars(self).update(
                    dataset=data, _dataset_kind=0, sampler=range(len(data)), batch_sampler=None
                )

        assert len(Loader([1, 2, 3])) == 3
