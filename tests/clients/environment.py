"""A virtual environment of each client, in which PyTorch and NumPy are those of the caller."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions, version
from pathlib import Path

from .client import Client
from .installing import FOLDER, ROOT

INSTALL_LIMIT_S = 1200

ALONE = {
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Settings under which no package looks for a network or a GPU."""


class Environment:
    """The environment of a client below a folder, made when it is first needed."""

    def __init__(self, client: Client, folder: Path = FOLDER) -> None:
        self.client = client
        self.folder = folder / "environments" / client.name
        self.product = folder / "product"
        self.python = self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """The folder of the packages that were installed for this client alone."""
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / python / "site-packages"

    def install(self, *, anew: bool = False) -> None:
        """Make the environment unless it is there for the same packages.

        Raises:
            subprocess.CalledProcessError: If pip finds no versions that fit; its output is kept.
        """
        wanted = hashlib.sha256(" ".join(self.client.packages).encode()).hexdigest()
        mark = self.folder / "installed"
        if not anew and mark.exists() and mark.read_text() == wanted:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        command = [sys.executable, "-m", "venv", "--without-pip", str(self.folder)]
        subprocess.run(command, check=True, timeout=INSTALL_LIMIT_S)
        # Behind the client's own packages, so that a version which it asks for hides the caller's.
        shared = sysconfig.get_path("purelib")
        (self.packages / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
        if self.client.packages:
            limits = self.folder / "constraints.txt"
            limits.write_text("".join(f"{n}=={version(n)}\n" for n in ("torch", "numpy")))
            pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "-q"]
            pip += ["-c", str(limits), *self.client.packages]
            done = subprocess.run(pip, timeout=INSTALL_LIMIT_S, capture_output=True, text=True)
            if done.returncode:
                raise InstallError(done.stderr.strip().splitlines()[-1])
        mark.write_text(wanted)

    def versions(self) -> dict[str, str]:
        """Versions of the packages that the client names, wherever they are installed."""
        paths = [str(self.packages), sysconfig.get_path("purelib")]
        found: dict[str, str] = {}
        for one in distributions(path=paths):
            found.setdefault(plain_name(one.metadata["Name"]), one.version)
        names = (plain_name(requirement) for requirement in self.client.packages)
        return {name: found.get(name, "?") for name in names}

    def variables(self) -> dict[str, str]:
        """Variables of a process that finds `oneflow` and `tests`, and no other folder."""
        self.product.mkdir(parents=True, exist_ok=True)
        for name in ("oneflow", "tests"):
            link = self.product / name
            if not link.is_symlink():
                link.symlink_to(ROOT / name)
        return {**os.environ, **ALONE, "PYTHONPATH": str(self.product)}


class InstallError(RuntimeError):
    """No versions of the packages of a client fit together, or the index cannot be reached."""


def plain_name(requirement: str) -> str:
    """Name of a requirement as the index compares names: `Pillow>=10` is `pillow`."""
    name = requirement
    for end in "[<>=!~;":
        name = name.partition(end)[0]
    return name.strip().lower().replace("_", "-").replace(".", "-")
