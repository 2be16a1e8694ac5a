"""Tracebacks of uncaught errors as users see them: they end in the user's own line.

The lines of this package between the user's call and the place of the error are left out of the
text, and kept on the error: pytest, debuggers and `traceback` see them all. ONEFLOW_DEBUG_MODE=1
shows them in the text, too. Nothing here runs before an error has gone all the way up.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oneflow.core.config import Config

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

_BOLD_RED, _PLAIN = "\x1b[1;31m", "\x1b[0m"


def install() -> None:
    """Show uncaught errors of this process so, before the hook that showed them until now."""
    before = sys.excepthook

    def show_users_lines(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        show(kind, error, trace, before)

    sys.excepthook = show_users_lines


def show(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None, before: Hook
) -> None:
    """Show an error by the hook `before`, without our own lines, and leave it as it was."""
    config = _configuration()
    if config is None or config.debug or config.launched or _is_ours_to_mend(error):
        before(kind, error, trace)
        return
    saved = [(e, e.__traceback__, e.__context__) for e in _chain(error)]
    hidden = 0
    try:
        for one, _, _ in saved:
            hidden += _shorten(one, is_first=one is error)
        if config.color and before is sys.__excepthook__ and _is_terminal():
            _print_in_color(error)
        else:
            before(kind, error, error.__traceback__)
    finally:
        for one, traceback, context in saved:
            one.__traceback__, one.__context__ = traceback, context
    if hidden and sys.stderr is not None:
        lines = "1 line" if hidden == 1 else f"{hidden} lines"
        print(f"({lines} inside oneflow left out: ONEFLOW_DEBUG_MODE=1 shows all)", file=sys.stderr)


def _shorten(error: BaseException, is_first: bool) -> int:
    """Leave our lines out of an error's traceback, and out of its contexts those errors that were
    raised and caught within this package; returns the number of lines.

    is_first: it is the error that is shown; of our own lines alone it keeps all.
    """
    context = error.__context__
    while context is not None and not _users(context.__traceback__):
        context = context.__context__
    error.__context__ = context
    users, count = _users(error.__traceback__), len(list(_frames(error.__traceback__)))
    if is_first and not users:
        return 0
    kept: TracebackType | None = None
    for t in reversed(users):
        kept = TracebackType(kept, t.tb_frame, t.tb_lasti, t.tb_lineno)
    error.__traceback__ = kept
    return count - len(users)


def _users(trace: TracebackType | None) -> list[TracebackType]:
    """The lines of a traceback that are not of this package."""
    is_ours = importlib.import_module("oneflow.core.location").package_file
    return [t for t in _frames(trace) if not is_ours(t.tb_frame.f_code.co_filename)]


def _configuration() -> Config | None:
    """The process's configuration; None where its variables are wrong, which may be the error."""
    config = importlib.import_module("oneflow.core.config")
    try:
        found: Config = config.current_config()
    except RuntimeError:
        return None
    return found


def _is_ours_to_mend(error: BaseException) -> bool:
    """Does a report of the error need all lines?"""
    errors = importlib.import_module("oneflow.core.errors")
    return any(isinstance(e, errors.InternalError) for e in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it came of, as far as they are shown."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _print_in_color(error: BaseException) -> None:
    """The traceback as Python prints it, and its message in bold red."""
    traceback = importlib.import_module("traceback")
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    count = len(traceback.format_exception_only(type(error), error))
    message = "".join(lines[-count:]).rstrip("\n")
    sys.stderr.write("".join(lines[:-count]) + f"{_BOLD_RED}{message}{_PLAIN}\n")
