"""LAYOUT.md has a line on every source file, and on no file that is not there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
FOLDER = re.compile(r"^## `(.+?)/`")
ENTRY = re.compile(r"^- `(.+?)`: ?(.*)$")


def load_layout() -> ModuleType:
    """docs/ is no package, so the script is loaded by its path."""
    spec = importlib.util.spec_from_file_location("layout", ROOT / "docs" / "layout.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed() -> dict[str, str]:
    """File -> what LAYOUT.md says about it; "named" for tests, which are only named."""
    result, folder = {}, ""
    for line in (ROOT / "LAYOUT.md").read_text().splitlines():
        if match := FOLDER.match(line):
            folder = match.group(1)
        elif match := ENTRY.match(line):
            result[str(Path(folder) / match.group(1))] = match.group(2)
        elif folder.split("/")[0] == "tests":
            result |= {str(Path(folder) / name): "named" for name in re.findall(r"`(.+?)`", line)}
    return result


def test_a_sentence_is_not_cut_where_its_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text('"""The first sentence goes on\nover two lines. The second is left out.\n"""\n')
    assert load_layout().first_sentence(path) == "The first sentence goes on over two lines."


def test_every_room_has_a_door_that_is_there() -> None:
    for room, door in load_layout().DOORS.items():
        for name in re.findall(r"`([\w/]+\.(?:py|proto))`", door):
            assert (ROOT / room / name).is_file(), f"{room}: {name}"


def test_every_source_file_is_listed() -> None:
    missing = {str(path) for path in load_layout().source_files()} - set(listed())
    assert not missing, f"run `make layout`; LAYOUT.md lacks {sorted(missing)}"


def test_every_listed_file_is_there() -> None:
    gone = [name for name in listed() if not (ROOT / name).is_file()]
    assert not gone, f"run `make layout`; LAYOUT.md names files that are not there: {gone}"


def test_every_file_says_what_it_is() -> None:
    silent = [name for name, said in listed().items() if not said]
    assert not silent, f"these need a docstring (then `make layout`): {silent}"


def test_links_and_generated_files_are_not_listed_twice(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "oneflow").mkdir()
    (tmp_path / "kernels" / "relu.py").write_text('"""The relu kernel.\n\nMore."""\n')
    (tmp_path / "kernels" / "x_pb2.py").write_text("generated = 1\n")
    (tmp_path / "oneflow" / "__init__.py").write_text("")
    (tmp_path / "oneflow" / "kernels").symlink_to("../kernels")
    layout = load_layout()
    assert layout.source_files(tmp_path) == [Path("kernels/relu.py")]
    assert "- `relu.py`: The relu kernel.\n" in layout.render(tmp_path)
