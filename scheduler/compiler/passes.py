"""The names of the compiler's passes, in their order: the whole way from a traced graph to a plan.

Those above `dedupe` rewrite the program as the configuration of the job asks for; nothing before
them does.

A pass is the function of that name in the module of that name, which lies in the folder of its
kind. It edits the graph in place, or from `group_segments` on, which makes a plan of the graph, the
plan; it holds no state, and leaves the graph or plan valid.
"""

from __future__ import annotations

FOLDERS = {
    "rewrite": (  # order is meaning: a pass may rely on every line above it
        "accumulate",  # the mean of gradients over micro-batches
        "mixed_precision",
        "cast_in_updates",
        "recompute",  # modules computed again in the backward pass
        "zero",  # parameters, gradients and states in parts
        "scale_loss",
        "assign_stages",
        "dedupe",
    ),
    "layout": (
        "infer_sbp",  # every value gets one SBP per hierarchy axis
        "insert_boxing",  # producer and reader now agree on every edge
    ),
    "schedule": (
        "split_stages",
        "micro_batch",  # what runs once a step, what once a piece
        "order",  # one order for all ranks
    ),
    "lower": (
        "copy_variables",  # peers and callers read no variable's own memory
        "group_segments",  # nodes become actors
        "connect",  # registers between the actors
        "sum_in_place",
        "count_registers",  # slots: how far anybody may run ahead
        "share_registers",
    ),
}
"""Passes by the folder that holds them."""

MODULES = {
    name: f"oneflow.scheduler.compiler.{folder}.{name}"
    for folder, names in FOLDERS.items()
    for name in names
}
PASSES = tuple(MODULES)
