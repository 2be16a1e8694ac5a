"""Views, copies and positions of global tensors on two ranks are those of PyTorch."""

from __future__ import annotations

import pickle

import pytest

from tests.support.launching import Done, check_done, launch


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    from .memory_program import answers

    file = tmp_path_factory.mktemp("memory") / "answers"
    file.write_bytes(pickle.dumps(answers()))
    return launch(2, "memory_program", file)


@pytest.mark.parametrize("scene", ["writes", "positions"])
def test_memory_of_global_tensors(done: Done, scene: str) -> None:
    check_done(done, 2, scene)
