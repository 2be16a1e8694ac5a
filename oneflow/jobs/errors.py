"""The error of files that describe jobs."""

from __future__ import annotations

from oneflow.core.errors import OneFlowError


class JobFileError(OneFlowError, ValueError):
    """A file that is not a valid job file; the message names the entry and the field."""

    exit_code = 65
