"""`flow.amp`: mixed precision in eager code: autocast, and scalers of losses."""

from oneflow.amp.autocasting import autocast, autocast_decorator
from oneflow.amp.grad_scaler import GradScaler, StaticGradScaler
from oneflow.surfaces import accept_paths

__all__ = ["GradScaler", "StaticGradScaler", "autocast", "autocast_decorator"]


accept_paths(__name__)
