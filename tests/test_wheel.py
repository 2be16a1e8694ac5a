"""A wheel built from this tree works in a new virtual environment, away from the tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("protos", "kernels", "boxing", "actors", "scheduler", "launcher")

pytestmark = pytest.mark.timeout(900)


def run(*command: str | Path, cwd: Path) -> str:
    """Output of a command that must succeed; it does not see the environment of the tests."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # building leaves files behind; not in the working tree
    skipped = shutil.ignore_patterns(
        ".git", "build", "dist", "*.egg-info", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, source, symlinks=True, ignore=skipped)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, source, cwd=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module", params=["borrowed", pytest.param("own", marks=pytest.mark.slow)])
def python(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The interpreter of a new environment with the wheel, and with its dependencies: of its own,
    or read from the environment of the tests, whose own oneflow stays out of sight.
    """
    folder = tmp_path_factory.mktemp("venv")
    interpreter = folder / "bin" / "python"
    if request.param == "own":
        run(sys.executable, "-m", "venv", folder, cwd=folder)
        run(interpreter, "-m", "pip", "install", "--quiet", wheel, cwd=folder)
        return interpreter
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    found = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "tests.pth").write_text("\n".join(found))
    install = ("--python", interpreter, "install", "--quiet", "--no-deps", "--no-index", wheel)
    run(sys.executable, "-m", "pip", *install, cwd=folder)
    return interpreter


def test_rooms_are_packages_of_the_wheel(python: Path, tmp_path: Path) -> None:
    names = ", ".join(f"oneflow.{room}" for room in ROOMS)
    printed = run(python, "-c", f"import {names}; print(oneflow.__file__)", cwd=tmp_path)
    assert Path(printed.strip()).is_relative_to(python.parents[1])


def test_digits_learn_from_another_folder(python: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    report = tmp_path / "report.json"
    launch = ("-m", "oneflow.distributed.launch", "--nproc_per_node", "2")
    run(python, *launch, "examples/digits.py", "--json", report, cwd=tmp_path)
    assert json.loads(report.read_text())["accuracy"] >= 0.97


def test_command_line_is_installed(python: Path, tmp_path: Path) -> None:
    printed = run(python.parent / "oneflow", "--version", cwd=tmp_path)
    assert printed.startswith("oneflow-actors")


def test_pytorch_finds_the_backend_by_its_name(python: Path, tmp_path: Path) -> None:
    probe = "from importlib.util import find_spec; print(find_spec('torch') is None)"
    if run(python, "-c", probe, cwd=tmp_path).strip() == "True":
        pytest.skip("this environment has no PyTorch")
    program = (
        "import torch\n"
        "model = torch.nn.Linear(3, 2)\n"
        "compiled = torch.compile(model, backend='oneflow')\n"
        "print(torch.allclose(compiled(torch.ones(4, 3)), model(torch.ones(4, 3))))\n"
    )
    assert run(python, "-W", "ignore", "-c", program, cwd=tmp_path).strip() == "True"
