"""Each fault of a network while a job runs; all of them by `make faults` too."""

from __future__ import annotations

import pytest

from campaigns.network import Outcome, run_scenes, scenes
from campaigns.proxy import Faults

NAMES = [scene.name for scene in scenes()]


def test_every_kind_of_fault_is_tried_on_every_line() -> None:
    """loss, stall, ...: the words of Faults that are chances."""
    chances = {name for name in vars(Faults()) if isinstance(getattr(Faults, name), float)}
    kinds = chances - {"delay_s", "jitter_s", "stall_s", "nbytes_per_s"}
    for place in ("tls daemons/", "ranks stages/", "ranks dense/"):
        tried = {name.partition("/")[2] for name in NAMES if name.startswith(place)}
        assert kinds | {"delay", "slow"} <= tried | ({"corrupt"} if "ranks" in place else set())
    assert len(set(NAMES)) == len(NAMES)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """Outcomes of the scenes whose tests were selected, on as few clusters as will do."""
    callspecs = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = {c.params.get("name") for c in callspecs if c is not None}
    left = [scene for scene in scenes() if scene.name in chosen]
    return {o.name: o for o in run_scenes(tmp_path_factory.mktemp("network"), left)}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_a_job_survives_or_says_why_not(outcomes: dict[str, Outcome], name: str) -> None:
    assert not outcomes[name].error
