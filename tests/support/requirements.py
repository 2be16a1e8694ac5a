"""Packages that a test installs, without an index."""

from __future__ import annotations

import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str) -> None:
    """Write a package of one module, which knows its version."""
    info = f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        file.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
