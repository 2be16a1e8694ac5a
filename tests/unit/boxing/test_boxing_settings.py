"""`flow.boxing`: each setter checks its argument and reaches the compiler, or says that it does
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.boxing import settings
from oneflow.core import no_effect
from oneflow.core.job_config import JobConfig

FLAGS = (
    "allow_fuse_all_reduce",
    "allow_fuse_reduce_scatter",
    "allow_fuse_all_gather",
    "allow_fuse_reduce",
    "allow_fuse_broadcast",
    "allow_fuse_mixed_ops",
    "enable_use_compute_stream",
    "enable_use_buffer_to_fuse_all_reduce",
    "enable_all_to_all",
    "disable_group_boxing_by_dst_parallel",
)
COUNTS = ("set_fusion_threshold_mbytes", "set_fusion_max_ops_num", "set_stream_num")


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    settings.reset()


WITHOUT_EFFECT = {
    "enable_use_buffer_to_fuse_all_reduce": False,
    "enable_all_to_all": False,
    "disable_group_boxing_by_dst_parallel": True,
    "set_stream_num": 7,
}


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_setting_that_changes_nothing_says_so_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(no_effect, "_said", set())
    setter, value = getattr(flow.boxing.nccl, name), WITHOUT_EFFECT[name]
    with pytest.warns(no_effect.NoEffectWarning, match=f"{name}.* has no effect: ") as warned:
        setter(value)
        setter(value)
    assert len(warned) == 1


@pytest.mark.filterwarnings("ignore::oneflow.core.no_effect.NoEffectWarning")
@pytest.mark.parametrize("name", FLAGS)
def test_flags_take_truth_values_only(name: str) -> None:
    setter = getattr(flow.boxing.nccl, name)
    before = settings.current()
    changed = set()
    for value in (True, False):
        assert setter(value) is None
        changed.add(settings.current())
    assert len(changed) == 2 and before in changed
    with pytest.raises(TypeError, match=f"{name}: expected True or False, got 1"):
        setter(1)


def test_graphs_use_the_backend_where_it_has_an_all_reduce_unless_told() -> None:
    assert settings.current().all_reduce_in_graphs is None
    for value in (True, False):
        flow.boxing.nccl.enable_all_reduce_in_graphs(value)
        assert settings.current().all_reduce_in_graphs is value
    with pytest.raises(TypeError, match="enable_all_reduce_in_graphs: expected True or False"):
        flow.boxing.nccl.enable_all_reduce_in_graphs(1)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::oneflow.core.no_effect.NoEffectWarning")
@pytest.mark.parametrize("name", COUNTS)
def test_counts_take_positive_integers_only(name: str) -> None:
    setter = getattr(flow.boxing.nccl, name)
    setter(7)
    assert settings.current() != settings.Settings()
    with pytest.raises(TypeError, match=f"{name}: expected an int, got True"):
        setter(True)
    with pytest.raises(TypeError, match=f"{name}: expected an int, got 2.5"):
        setter(2.5)
    with pytest.raises(ValueError, match=f"{name}: expected 1 or more, got 0"):
        setter(0)


def test_fusion_as_a_whole() -> None:
    flow.boxing.enable_fusion(False)
    assert not settings.current().fusion
    with pytest.raises(TypeError, match="enable_fusion"):
        flow.boxing.enable_fusion("no")  # type: ignore[arg-type]


def test_settings_travel_in_the_job_configuration() -> None:
    flow.boxing.nccl.set_fusion_threshold_mbytes(4)
    flow.boxing.nccl.set_fusion_max_ops_num(9)
    flow.boxing.nccl.allow_fuse_all_reduce(False)
    flow.boxing.nccl.allow_fuse_mixed_ops(False)
    config = JobConfig("g", **settings.current().job_fields())
    assert JobConfig.from_bytes(config.to_bytes()) == config
    assert (config.fusion_nbytes, config.fusion_ops) == (4 << 20, 9)
    assert config.unfused_boxing == ("all_reduce",) and not config.mix_boxing


def test_a_graph_is_compiled_with_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    import oneflow.graph.compiling as module

    seen: list[Any] = []
    compile_and_bind = module.compile_and_bind

    def spy(graph: Any, config: JobConfig, *rest: Any) -> Any:
        seen.append(config)
        return compile_and_bind(graph, config, *rest)

    monkeypatch.setattr(module, "compile_and_bind", spy)

    class Twice(flow.nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            return x + x

    flow.boxing.nccl.set_fusion_max_ops_num(3)
    twice = Twice()
    np.testing.assert_array_equal(twice(flow.ones(2)).numpy(), [2, 2])
    assert seen[0].fusion_ops == 3
