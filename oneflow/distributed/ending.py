"""The end of this process: its message to the other ranks, the lines that it shows, and its exit
code.

The rank that fails first shows its traceback; one that fails after it, or because of it, shows one
line. A process that no launcher started gets the exit code of its error too.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from types import TracebackType

from oneflow.core.errors import OneFlowError, PeerLostError, RendezvousError
from oneflow.core.location import package_file

INTERRUPTED = 130
BRIEF = (PeerLostError, RendezvousError)
"""The script did nothing wrong: where it was says little, and every rank would say it."""

_code: object = 0
_report: Callable[[BaseException], bool] | None = None


def _nobody() -> bool:
    return False


_is_joined: Callable[[], bool] = _nobody
_is_brief: Callable[[BaseException], bool] | None = None


def watch(report: Callable[[BaseException], bool], is_joined: Callable[[], bool]) -> None:
    """Tell `report` from now on of the error that ends this process. Hooks are set once.

    report: tells the others of an error; returns whether another rank failed before.  is_joined:
    whether there are others that can be told.
    """
    global _report, _is_joined
    is_new, _report, _is_joined = _report is None, report, is_joined
    if is_new:
        _watch_exit()
        _watch_errors()


def show_briefly(is_brief: Callable[[BaseException], bool]) -> None:
    """Errors of which one line is shown besides: where they were raised says nothing more."""
    global _is_brief
    _is_brief = is_brief


def is_joined() -> bool:
    """Whether the scheduler can say which rank failed first."""
    return _is_joined()


def note_exit(code: object) -> None:
    """Note that the process is about to end with `code`, in place of earlier notes."""
    global _code
    _code = code


def noted_exit() -> object:
    """Return the last argument of sys.exit, or the uncaught error's code; 0 if there
    was neither.
    """
    return _code


def exit_code(error: BaseException) -> int:
    """The exit code that an uncaught error means."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, OneFlowError) else 1


def describe(error: BaseException) -> str:
    """`ValueError: text`, the type without its module."""
    text = traceback.format_exception_only(type(error), error)[-1].strip()
    return text.removeprefix(f"{type(error).__module__}.")


def one_line(error: BaseException, trace: TracebackType | None) -> str:
    """The error in one line, with the line of the script it came through last."""
    text = describe(error).splitlines()[0]
    lines = [f for f in traceback.extract_tb(trace) if not package_file(f.filename)]
    return f"{text} ({lines[-1].filename}:{lines[-1].lineno})" if lines else text


def _watch_exit() -> None:
    before = sys.exit

    def exit_and_note(code: object = None, /) -> None:
        note_exit(code)
        before(code)  # type: ignore[arg-type]

    sys.exit = exit_and_note  # type: ignore[assignment]


def _watch_errors() -> None:
    before = sys.excepthook

    def report_and_show(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        note_exit(exit_code(error))
        is_late = _report is not None and _report(error)
        is_brief = isinstance(error, BRIEF) or (_is_brief is not None and _is_brief(error))
        if is_late or is_brief:
            print(f"oneflow: {one_line(error, trace)}", file=sys.stderr, flush=True)
        else:
            before(kind, error, trace)
        if not hasattr(sys, "ps1"):
            raise SystemExit(exit_code(error))  # the interpreter alone would make it 1

    sys.excepthook = report_and_show
