"""Cut cables between hosts that are network namespaces; skipped where these cannot be made."""

from __future__ import annotations

import pytest

from .fault_hosts import missing_right
from .fault_namespaces import SCENES, Outcome, run_scenes

NAMES = [scene.name for scene in SCENES]


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """Outcomes of the scenes whose tests were selected, on as few clusters as will do."""
    if why := missing_right():
        pytest.skip(why)
    callspecs = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = {c.params.get("name") for c in callspecs if c is not None}
    left = [scene for scene in SCENES if scene.name in chosen]
    return {o.name: o for o in run_scenes(tmp_path_factory.mktemp("hosts"), left)}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_both_sides_agree_who_is_lost(outcomes: dict[str, Outcome], name: str) -> None:
    assert not outcomes[name].error
