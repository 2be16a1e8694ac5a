"""Settings of graphs that change no result: their errors, and their prints."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import ConfigError
from oneflow.graph import config
from oneflow.graph.config import GraphConfig
from oneflow.optim import SGD

from .options import OPTIONS, Model, Option, Train, local

CHANGE_NOTHING: dict[str, object] = {
    "allow_fuse_model_update_ops": False,
    "enable_cudnn_conv_heuristic_search_algo": True,
    "set_outputs_buffer_size": 3,
}
WORK = (
    *("enable_amp", "enable_zero", "set_zero_redundancy_optimizer_mode", "enable_auto_parallel"),
    *("set_gradient_accumulation_steps", "enable_straighten_algorithm", "enable_compress_memory"),
    *("set_memory_limit", "enable_auto_parallel_ignore_user_sbp_config", "enable_auto_memory"),
    *("set_auto_parallel_computation_cost_ratio", "set_auto_parallel_wait_time"),
    *("enable_auto_parallel_trunk_algo", "enable_auto_parallel_sbp_collector"),
    *("set_pipeline_schedule", "enable_overlap", "enable_choose_best_memory_allocation"),
    *("allow_fuse_add_to_output", "allow_fuse_cast_scale", "enable_multi_tensor_update"),
    "enable_fused_model_update_cast",
)


class Asked:
    """A config that keeps the names of the called methods."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(GraphConfig(), name)


def test_the_table_of_options_has_each() -> None:
    """All options that do something; micro-batches it sets by itself."""
    asked = Asked()
    for option in OPTIONS.values():
        model = Model(local)
        graph: Any = Train(model, [(SGD(model.parameters(), lr=0.1), None)], Option())
        graph._spec.config = asked
        option.configure(graph)
    assert asked.names == set(WORK) - {"set_gradient_accumulation_steps"}


class Doubles(nn.Graph):
    def build(self, x: Any) -> Any:
        return x * 2.0


@pytest.mark.parametrize("name", CHANGE_NOTHING)
def test_an_option_that_changes_nothing_says_so_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the plan is the same to the byte."""
    monkeypatch.setattr(config, "_said", set())
    plans = []
    for is_set in (False, True):
        graph = Doubles()
        graph.config.set_gradient_accumulation_steps(2)
        if is_set:
            with pytest.warns(UserWarning, match=f"graph.config.{name} changes nothing here: "):
                getattr(graph.config, name)(CHANGE_NOTHING[name])
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                getattr(GraphConfig(), name)(CHANGE_NOTHING[name])
            assert name in graph.config.hints
        graph(flow.ones(4, 2))
        text = str(graph._spec.plans.now.job.bound.plan).splitlines()[
            1:
        ]  # the first names the graph
        plans.append((text, [n.attrs for n in graph._spec.plans.now.job.bound.plan.graph]))
    assert plans[0] == plans[1]


def test_every_option_is_tried_here() -> None:
    """Those that do something have tests of their own."""
    methods = {n for n, _ in inspect.getmembers(GraphConfig, inspect.isfunction) if n[0] != "_"}
    assert methods == {*CHANGE_NOTHING, *WORK}


def test_an_option_that_is_off_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings = GraphConfig()
        settings.allow_fuse_model_update_ops(mode=True)
        settings.enable_fused_model_update_cast(mode=False)
        settings.set_outputs_buffer_size(value=2)
    with pytest.raises(AssertionError, match="please choose one of Disable, SlightMemoryDown"):
        settings.enable_auto_memory("Less")


# ---- debugging -----------------------------------------------------------------------------------


def twice(x: Any) -> Any:
    return x * 2.0


class Calls(nn.Graph):
    def build(self, x: Any) -> Any:
        return twice(x)


@pytest.mark.parametrize(("depth", "lines"), [(0, 0), (1, 1), (2, 2), (3, 3)])
def test_ops_tell_as_many_lines_as_asked_for(
    depth: int, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = Calls()
    graph.debug(2, max_py_stack_depth=depth)
    graph(flow.ones(2))
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "scalar_mul(" in x]
    assert line.count(f"{__file__}:") == lines
    assert (f"<- {__file__}:" in line) == (lines > 1)


def test_the_text_of_a_graph_tells_them_too() -> None:
    graph = Calls(debug_op_repr_with_py_stack=True, debug_max_py_stack_depth=4)
    graph(flow.ones(2))
    (line,) = [x for x in repr(graph).splitlines() if "scalar_mul" in x]
    first = inspect.getsourcelines(twice)[1] + 1
    assert f"at {__file__}:{first} <- {__file__}:" in line
    inside = Calls(
        debug_v_level=-1,
        debug_op_repr_with_py_stack=True,
        debug_only_user_py_stack=False,
    )
    inside(flow.ones(2))
    (line,) = [x for x in repr(inside).splitlines() if "scalar_mul" in x]
    assert "/oneflow/functional/" in line.split(" at ")[1].split(":")[0]
    with pytest.raises(AssertionError, match="must be >= 0, got -1"):
        inside.debug(1, max_py_stack_depth=-1)


def test_a_layer_of_the_table_tells_the_line_of_the_user() -> None:
    model = nn.ReLU()

    class Applied(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def build(self, x: Any) -> Any:
            return self.model(x)

    graph = Applied()
    graph(flow.ones(2))
    (line,) = [x for x in repr(graph).splitlines() if "-relu-" in x]
    assert f"at {__file__}:" in line


def test_one_line_without_debugging() -> None:
    graph = Calls()
    graph(flow.ones(2))
    (line,) = [x for x in repr(graph).splitlines() if "scalar_mul" in x]
    assert line.count(".py:") == 1
    np.testing.assert_array_equal(graph(flow.ones(2)).numpy(), [2.0, 2.0])


@pytest.mark.parametrize(
    "call, field, value",
    [
        (("enable_auto_parallel_ignore_user_sbp_config",), "ignores_user", True),
        (("set_auto_parallel_computation_cost_ratio", 0.5), "computing_ratio", 0.5),
        (("set_auto_parallel_wait_time", 2e4), "wait_nbytes", 2e4),
        (("enable_auto_parallel_trunk_algo", False), "hides_waits", False),
        (("enable_auto_parallel_sbp_collector", False), "shares_moves", False),
        (("enable_auto_memory", "HeavyMemoryDown"), "memory_price", 1e-10),
        (("enable_auto_memory",), "memory_price", None),
    ],
)
def test_settings_of_the_search_reach_it(call: Any, field: str, value: object) -> None:
    """Their effect on layouts is tested beside the search."""
    settings = GraphConfig()
    name, *args = call
    getattr(settings, name)(*args)
    assert settings.auto_parallel_settings is None
    settings.enable_auto_parallel()
    assert getattr(settings.auto_parallel_settings, field) == value


def test_the_search_fits_in_the_memory_limit() -> None:
    settings = GraphConfig()
    settings.enable_auto_parallel()
    settings.enable_auto_memory("AdaptiveMemory")
    settings.set_memory_limit(1000)
    found = settings.auto_parallel_settings
    assert found is not None and found.memory_nbytes == 1000


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan"), "1", True])
def test_weights_of_the_search_are_checked(bad: Any) -> None:
    settings = GraphConfig()
    with pytest.raises(ConfigError, match="ratio must be a finite number above 0"):
        settings.set_auto_parallel_computation_cost_ratio(bad)
    with pytest.raises(ConfigError, match="wait time must be a finite number above 0"):
        settings.set_auto_parallel_wait_time(bad)


def test_a_dtype_is_no_mode_of_mixed_precision() -> None:
    graph = nn.Graph()
    with pytest.raises(ConfigError, match=r"write dtype=oneflow.bfloat16"):
        graph.config.enable_amp(flow.bfloat16)
