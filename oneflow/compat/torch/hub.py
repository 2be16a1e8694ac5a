"""`flow.hub`: models that a folder's `hubconf.py` offers, and files fetched by their address.

A folder of this machine works as upstream (`source="local"`). Repositories of GitHub are not
fetched: code that was downloaded would run here unseen. Clone one, and name the folder.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib.util
import os
import re
import shutil
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import URLError
from urllib.parse import urlparse

from platformdirs import user_cache_path

from oneflow.core.errors import OneFlowError
from oneflow.io.assemble import MapLocation
from oneflow.io.checkpoint import load as _load_file

__all__ = [
    "download_url_to_file",
    "get_dir",
    "help",
    "list",
    "load",
    "load_state_dict_from_url",
    "set_dir",
]

HASH_REGEX = re.compile(r"-([a-f0-9]{8,})\.")

_folder: Path | None = None


def get_dir() -> str:
    """The folder of fetched files: set by `set_dir`, else $ONEFLOW_HOME/hub, else the user's
    cache.
    """
    return str(_folder or Path(_get_torch_home()) / "hub")


def _get_torch_home() -> str:
    """The folder that holds the one of fetched files. The name is PyTorch's; torchvision asks."""
    environment: Mapping[str, str] = os.environ
    return str(Path(environment.get("ONEFLOW_HOME") or user_cache_path("oneflow")))


def set_dir(d: str | Path) -> None:
    """Choose the folder of fetched files."""
    global _folder
    _folder = Path(d).expanduser()


def list(  # the name is upstream's
    github: str, force_reload: bool = False, skip_validation: bool = False, source: str = "local"
) -> builtins.list[str]:
    """Names of the models that a folder offers: the functions of its `hubconf.py`."""
    conf = _conf(github, source)
    return [n for n, f in vars(conf).items() if callable(f) and not n.startswith("_")]


def help(github: str, model: str, force_reload: bool = False, source: str = "local") -> str | None:
    """The docstring of a model's function."""
    return _entry(_conf(github, source), model).__doc__


def load(
    repo_or_dir: str,
    model: str,
    *args: object,
    source: str = "local",
    trust_repo: object = None,
    force_reload: bool = False,
    verbose: bool = True,
    skip_validation: bool = False,
    **kwargs: object,
) -> Any:
    """Call the function `model` of a folder's `hubconf.py` with the arguments that are left."""
    return _entry(_conf(repo_or_dir, source), model)(*args, **kwargs)


def _conf(folder: str, source: str) -> ModuleType:
    """The `hubconf.py` of a folder, imported. Raises OneFlowError, ValueError."""
    if source not in ("local", "github"):
        raise ValueError(f'Unknown source: "{source}". Allowed values: "github" | "local".')
    path = Path(folder) / "hubconf.py"
    if source == "github" or not path.is_file():
        raise OneFlowError(
            f"hub: there is no folder {folder!r} with a hubconf.py, and repositories are not "
            f'fetched from GitHub; clone it and give the folder with source="local"'
        )
    spec = importlib.util.spec_from_file_location("hubconf", path)
    if spec is None or spec.loader is None:
        raise OneFlowError(f"hub: {path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    missing = [
        name
        for name in getattr(module, "dependencies", ())
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise RuntimeError(f"Missing dependencies: {', '.join(missing)}")
    return module


def _entry(conf: ModuleType, model: str) -> Callable[..., Any]:
    found: object = getattr(conf, model, None)
    if not callable(found):
        raise RuntimeError(f"Cannot find callable {model} in hubconf")
    return found


def download_url_to_file(
    url: str, dst: str | Path, hash_prefix: str | None = None, progress: bool = True
) -> None:
    """Fetch a file. hash_prefix: how the SHA-256 of its bytes begins; RuntimeError if otherwise.

    The file appears whole or not at all. Raises OneFlowError if the address cannot be reached.
    """
    target = Path(dst)
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as part:
        try:
            with _opened(url) as source:
                while block := source.read(1 << 20):
                    digest.update(block)
                    part.write(block)
            if hash_prefix and not digest.hexdigest().startswith(hash_prefix):
                raise RuntimeError(
                    f'invalid hash value (expected "{hash_prefix}", got "{digest.hexdigest()}")'
                )
            part.close()
            shutil.move(part.name, target)
        finally:
            Path(part.name).unlink(missing_ok=True)


def _opened(url: str) -> Any:
    try:
        return urllib.request.urlopen(url)
    except (URLError, OSError) as error:
        raise OneFlowError(
            f"hub: {url} cannot be fetched ({error}); where there is no network, put the file "
            f"into {get_dir()}/checkpoints yourself"
        ) from None


def load_state_dict_from_url(
    url: str,
    model_dir: str | Path | None = None,
    map_location: MapLocation = None,
    progress: bool = True,
    check_hash: bool = False,
    file_name: str | None = None,
    weights_only: bool = True,
) -> Any:
    """`flow.load` of the file that an address names, fetched unless it is in `model_dir` already.

    check_hash: the name ends in `-<begin of its SHA-256>.<ending>`, which is compared.
    """
    folder = Path(model_dir) if model_dir is not None else Path(get_dir()) / "checkpoints"
    path = folder / (file_name or Path(urlparse(url).path).name)
    if not path.exists():
        named = HASH_REGEX.search(path.name) if check_hash else None
        download_url_to_file(url, path, named[1] if named else None, progress)
    return _load_file(path, map_location=map_location)
