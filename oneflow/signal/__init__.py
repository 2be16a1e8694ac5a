"""`flow.signal`: windows of signals."""

from oneflow.signal import windows as windows
