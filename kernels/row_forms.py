"""Forms in which rows of tables travel between ranks: as they are, halved, or as bytes with a scale
each (oneflow/ops/one_embedding.py: COMMUNICATIONS).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from oneflow.kernels.array import Array
from oneflow.ops.one_embedding import SCALE_NBYTES

_LARGEST = 127
_SHOWN_ROWS = 1024
"""Rows of each batch whose error is counted."""


def encoded(rows: Array, communication: str) -> Array:
    """float32[n, size] in the form in which it travels."""
    if communication == "float32":
        return rows
    if communication == "float16":
        with np.errstate(over="ignore"):  # an infinity, which a scaler of gradients looks for
            return rows.astype(np.float16)
    sent: Array = np.empty((len(rows), rows.shape[1] + SCALE_NBYTES), np.int8)
    bits = _rounded_up(np.abs(rows).max(axis=1, initial=0) / np.float32(_LARGEST))
    scales = _scales(bits)
    is_number = np.isfinite(scales) & (scales >= np.finfo(np.float32).tiny)
    divisors = np.where(is_number, scales, np.float32(np.inf))
    with np.errstate(invalid="ignore"):
        scaled = rows / divisors[:, None]
    scaled[~is_number] = 0
    sent[:, :-SCALE_NBYTES] = np.rint(scaled, out=scaled)
    sent[:, -SCALE_NBYTES:] = bits[:, None].view(np.int8)
    return sent


def decoded(sent: Array, communication: str) -> Array:
    """Inverse of `encoded`, but for the rounding."""
    if communication != "int8":
        return sent.astype(np.float32, copy=False)
    bits = np.ascontiguousarray(sent[:, -SCALE_NBYTES:]).view(np.uint16)
    with np.errstate(invalid="ignore"):  # rows with an infinity come out as NaN
        rows: Array = sent[:, :-SCALE_NBYTES].astype(np.float32) * _scales(bits[:, 0])[:, None]
    return rows


def _rounded_up(numbers: Array) -> Array:
    """The bits of the next bfloat16 of each, uint16: quotients stay below the largest byte."""
    wide = numbers.astype(np.float32).view(np.uint32)
    bits = np.where(np.isfinite(numbers), (wide + np.uint32(0xFFFF)) >> 16, wide >> 16)
    return bits.astype(np.uint16)


def _scales(bits: Array) -> Array:
    scales: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return scales


# ---- what is lost --------------------------------------------------------------------------------


@dataclass
class Loss:
    """Sums of squares of the numbers sent and of their rounding."""

    sent: float = 0.0
    lost: float = 0.0

    def add(self, rows: Array, communication: str, sent: Array) -> None:
        """Count the first rows of a batch."""
        shown = rows[:_SHOWN_ROWS].astype(np.float64)
        rounded = decoded(sent[:_SHOWN_ROWS], communication)
        self.sent += float((shown**2).sum())
        self.lost += float(((shown - rounded) ** 2).sum())

    @property
    def relative(self) -> float:
        """Root mean square of the rounding, as a share of that of the numbers."""
        return (self.lost / self.sent) ** 0.5 if self.sent else 0.0


_LOSSES: dict[tuple[str, str], Loss] = {}
_LOCK = threading.RLock()  # a collector of garbage may forget other losses inside


def loss_of(table: str, kind: str) -> Loss:
    """The loss of this process in sending rows of tables. kind: rows or gradients."""
    with _LOCK:
        return _LOSSES.setdefault((table, kind), Loss())


def forget_losses(table: str) -> None:
    """Forget the losses counted for the tables of a description."""
    with _LOCK:
        for key in [key for key in _LOSSES if key[0] == table]:
            del _LOSSES[key]


def encoded_of(table: str, kind: str, rows: Array, communication: str) -> Array:
    """`encoded` rows of these tables, with the loss counted."""
    sent = encoded(rows, communication)
    if communication != "float32":
        loss_of(table, kind).add(rows, communication, sent)
    return sent
