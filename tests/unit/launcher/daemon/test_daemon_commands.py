"""Command of a script job, and the GPU that it sees."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from oneflow.core.errors import ConfigError
from oneflow.launcher.daemon.programs import command, program_env
from oneflow.launcher.daemon.rank_resources import device_env
from oneflow.launcher.rank_env import bootstrap_path

BOOTSTRAP = str(bootstrap_path())


def run(*argv: str, cwd: Path = Path("/")) -> list[str]:
    """Arguments of the command, without the program itself."""
    return command(argv, program_env({"PATH": os.environ["PATH"]}), cwd)[1:]


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["python", "train.py", "-u"], [BOOTSTRAP, "train.py", "-u"]),
        (["python3", "-u", "train.py"], ["-u", BOOTSTRAP, "train.py"]),
        (["python", "-m", "pkg.train", "-m"], [BOOTSTRAP, "-m", "pkg.train", "-m"]),
        (["python", "-c", "print(1)"], ["-c", "print(1)"]),
        (["python", "-X", "dev", "train.py"], ["-X", "dev", "train.py"]),
        (["python", "-m"], ["-m"]),
        (["python"], []),
        (["sh", "-c", "exit 3; $HOME"], ["-c", "exit 3; $HOME"]),
    ],
)
def test_only_python_scripts_are_wrapped(argv: list[str], wanted: list[str]) -> None:
    assert run(*argv) == wanted


def test_python_is_the_one_of_the_daemon() -> None:
    env = program_env({"PATH": "/usr/bin"})
    assert env["PATH"] == f"{os.path.dirname(sys.executable)}:/usr/bin"
    assert env["PYTHONUNBUFFERED"] == "1"
    found = command(["python", "x.py"], env, Path("/"))[0]
    assert os.path.dirname(found) == os.path.dirname(sys.executable)
    assert program_env({"PYTHONUNBUFFERED": ""})["PYTHONUNBUFFERED"] == ""
    assert program_env({"PATH": "/usr/bin"}, ["/env/bin"])["PATH"] == f"/env/bin:{env['PATH']}"


def test_a_program_of_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    with pytest.raises(ConfigError, match=r"cannot run '\./run\.sh'"):
        command(["./run.sh"], {}, tmp_path)
    (tmp_path / "run.sh").chmod(0o755)
    assert command(["./run.sh", "a"], {}, tmp_path) == [str(tmp_path / "run.sh"), "a"]


@pytest.mark.parametrize("argv", [[], [""], ["no-such-program"], ["/"]])
def test_what_cannot_be_run_is_refused(argv: list[str]) -> None:
    with pytest.raises(ConfigError):
        run(*argv)


@pytest.mark.parametrize(
    ("device", "local_rank", "given", "wanted"),
    [
        (0, 0, "", "0"),
        (3, 0, "", "3"),
        (3, 1, "", "0,3"),
        (1, 1, "", "0,1"),
        (0, 2, "", "1,2,0"),
        (1, 0, "4,7", "7"),
        (0, 1, "4,7", "7,4"),
        (1, 0, "GPU-aa,GPU-bb", "GPU-bb"),
    ],
)
def test_the_rank_finds_its_gpu_under_its_local_rank(
    device: int, local_rank: int, given: str, wanted: str
) -> None:
    env = {"CUDA_VISIBLE_DEVICES": given} if given else {}
    found = device_env("cuda", device, local_rank, env)["CUDA_VISIBLE_DEVICES"]
    assert found == wanted
    assert len(found.split(",")) == local_rank + 1


def test_a_gpu_that_is_not_shown_to_the_daemon_is_refused() -> None:
    with pytest.raises(ConfigError, match="cuda:2 is not among"):
        device_env("cuda", 2, 0, {"CUDA_VISIBLE_DEVICES": "4,7"})


def test_a_rank_on_a_cpu_sees_no_gpu() -> None:
    assert device_env("cpu", 0, 0, {"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": ""}


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("hello")
    for program, said in (("./notes", "not executable"), ("./", "a folder"), ("./x", "no such")):
        with pytest.raises(ConfigError, match=said):
            run(program, cwd=tmp_path)
    with pytest.raises(ConfigError, match="no such program"):
        run("./" + "x" * 300, cwd=tmp_path)
