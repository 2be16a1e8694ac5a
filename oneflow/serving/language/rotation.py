"""Rotary positions: angles by position and place in a head."""

from __future__ import annotations

import math

import numpy as np

from oneflow.kernels.array import Array
from oneflow.serving.language.config import Rotation


def angles(rotation: Rotation, depth: int, positions: int) -> Array:
    """Return cosines, then sines, of half a head's places: float32 (positions, depth)."""
    steps = frequencies(rotation, depth).astype(np.float32)
    turns = np.arange(positions, dtype=np.float32)[:, None] * steps
    return np.concatenate([np.cos(turns), np.sin(turns)], axis=1)


def frequencies(rotation: Rotation, depth: int) -> Array:
    """Angles from one position to the next, of the depth // 2 places.

    "linear" stretches positions; "llama3" stretches long wavelengths, leaves short ones, and goes
    from one to the other between (Llama 3.1, as in its config.json).
    """
    plain = rotation.theta ** -(np.arange(0, depth, 2) / depth)
    options = rotation.options
    if rotation.kind == "default":
        return plain
    stretched = plain / options["factor"]
    if rotation.kind == "linear":
        return stretched
    low, high = options["low_freq_factor"], options["high_freq_factor"]
    turns = options["original_max_position_embeddings"] * plain / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return share * plain + (1 - share) * stretched
