"""Runs a script as `python script.py args` would, and keeps a record of its end.

The launcher starts it by its path, `worker.py [-m] script args`: standard library only, so that
a broken installation of anything else is recorded too. The record goes to the file named by
ONEFLOW_ERROR_FILE. `worker.py --fork N [-m] script args` is forked into ranks (forked.py).
"""

from __future__ import annotations

import builtins
import faulthandler
import hashlib
import importlib.machinery
import io
import json
import os
import runpy
import signal
import sys
import traceback
from types import ModuleType, TracebackType
from typing import Any, TypeGuard

MAX_TRACEBACK_CHARS = 256 << 10
INTERRUPTED = 130
FOLLOWS = 85  # PEER_LOST of core/errors.py, which costs an import here: another rank failed first


def main(argv: list[str]) -> None:
    """Runs argv[0] (or, after -m, the module argv[1]) with the rest as its arguments."""
    if sys.stderr is not None:
        faulthandler.enable(all_threads=False)  # the thread that crashed says enough
        answer_for_stacks()
    own_frame = sys._getframe()
    show_pulse()
    try:
        if argv[0] == "-m":
            run_module(argv[1:])
        else:
            run_script(argv)
        note_exit(0)
    except SystemExit as error:
        note_exit(error.code)
        if exit_status(error.code):
            record(error, _user_part(error, own_frame.f_code.co_filename))
        raise
    except BaseException as error:
        end_undisturbed(error)
        shown = _user_part(error, own_frame.f_code.co_filename)
        record(error, shown)
        error.with_traceback(shown)
        if is_ours_to_show(error, shown):
            sys.excepthook(type(error), error, shown)  # the script's own, if it has set one
        elif sys.stderr is not None:
            print(f"oneflow: as another rank: {summary(error, shown)}", file=sys.stderr)
        sys.exit(exit_code(error))


def become_rank(control: int, argv: list[str]) -> bool:
    """Return True in each rank that is forked from here, False if none is, or will be any more.

    None is if the script would import another module of its own where one has been imported here,
    or if oneflow cannot be imported: ranks that start alone then use that one, or show the error.
    """
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path, before = list(sys.path), set(sys.modules)
    sys.path[: 0 if _is_path_safe() else 1] = [home]
    try:
        from oneflow.distributed import forked

        forked.warm_up()
    except (Exception, KeyboardInterrupt):  # the launcher is told of Ctrl-C, too
        return False
    if _hides(argv, set(sys.modules) - before):
        return False
    is_rank = forked.become_rank(control)
    sys.path[:] = path
    return is_rank


def answer_for_stacks() -> None:
    """The launcher asks a stuck rank for its stacks, with SIGUSR2; they come on standard error.

    Not by a Python handler: those wait for the interpreter lock, with which the rank may
    be stuck. The waits of the actors come after the stacks, if their handler gets to run.
    """
    signal.signal(signal.SIGUSR2, say_what_it_waits_for)
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=True)


def end_undisturbed(error: BaseException) -> None:
    """A rank that ends for Ctrl-C, or as another rank got it first, shows no second traceback; and
    one that ends for any error shows it, though the launcher tells it to end meanwhile.

    The signal may come while the rank already ends; and it most often interrupts the news that
    another rank was interrupted. SIGTERM comes as soon as another rank has ended: of ranks that
    fail alike, the one that has more to say is often the later.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    is_for_ctrl_c = exit_code(error) in (INTERRUPTED, FOLLOWS)
    if is_for_ctrl_c and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if isinstance(error, KeyboardInterrupt):
        error.__suppress_context__ = True


def say_what_it_waits_for(number: int, frame: object) -> None:
    """Print, on SIGUSR2, the waits of this rank's actors, if the runtime has been
    loaded.
    """
    live: Any = sys.modules.get("oneflow.actors.running_jobs")
    if live is not None and sys.stderr is not None:
        print(f"oneflow: {live.report()}", file=sys.stderr, flush=True)


def show_pulse() -> None:
    """Beat for the daemon that started this process, if one did."""
    if os.environ.get("ONEFLOW_PULSE_FD"):
        path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "services", "pulse.py")
        runpy.run_path(path)["start"](os.environ)


def run_script(argv: list[str]) -> None:
    """Run a script as `python argv[0] ...` does: a file, or a folder or archive with a __main__."""
    script = argv[0]
    sys.argv = argv
    if os.path.isdir(script) or not _is_source(script):
        if not _is_path_safe():
            sys.path.pop(0)  # runpy puts the folder or archive there itself
        runpy.run_path(script, run_name="__main__")
        return
    if not _is_path_safe():
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    with io.open_code(script) as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    exec(code, _fresh_main(script).__dict__)


def run_module(argv: list[str]) -> None:
    """Run a module as `python -m argv[0] ...` does."""
    sys.argv = argv
    if not _is_path_safe():
        sys.path[0] = os.getcwd()
    _fresh_main(None)
    # What the interpreter itself calls for -m; the public run_module leaves a temporary __main__
    # behind.
    runpy._run_module_as_main(argv[0])  # type: ignore[attr-defined]


def exit_status(code: object) -> int:
    """The status, 0 to 255, of a process that ends with `sys.exit(code)`."""
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1  # the interpreter prints it
    return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF


def exit_code(error: BaseException) -> int:
    """Return INTERRUPTED for Ctrl-C, the code of one of our own errors, 1 for any other."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return int(error.exit_code) if _is_ours(error) else 1


def record(error: BaseException, shown: TracebackType | None) -> None:
    """Writes the record, whole or not at all. A full disk must not hide the error itself."""
    path = os.environ.get("ONEFLOW_ERROR_FILE")
    if not path:
        return
    text = "".join(traceback.format_exception(type(error), error, shown))
    found = {
        "type": type(error).__name__,
        "summary": summary(error, shown),
        "reason": str(error.reason) if _is_ours(error) else "",  # empty: the exit code tells
        "exit_code": exit_code(error),
        "traceback": text[-MAX_TRACEBACK_CHARS:],
    }
    try:
        with open(path + ".tmp", "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(found, file)
        os.replace(path + ".tmp", path)
    except OSError as problem:
        print(f"oneflow: cannot record the error: {problem}", file=sys.stderr)


def summary(error: BaseException, shown: TracebackType | None) -> str:
    """`ValueError: text (train.py:12)`: the error and the script's last line it came through."""
    if isinstance(error, SystemExit):
        what = f"sys.exit({error.code!r})"
    else:
        what = traceback.format_exception_only(type(error), error)[-1].strip()
        what = what.removeprefix(f"{type(error).__module__}.")
    frames = traceback.extract_tb(shown)
    if not frames or getattr(error, "location", None):  # then the text has it already
        return what
    script = [frame for frame in frames if frame.filename == frames[0].filename]
    return f"{what} ({os.path.basename(script[-1].filename)}:{script[-1].lineno})"


def is_ours_to_show(error: BaseException, shown: TracebackType | None) -> bool:
    """False if another rank of this machine has shown the same before the ranks had joined.

    Later the scheduler knows the first. Not so for Ctrl-C, which all get at once: the scheduler
    may be gone before the second rank can ask it.
    """
    ending: Any = sys.modules.get("oneflow.distributed.ending")
    path = os.environ.get("ONEFLOW_ERROR_FILE")
    is_interrupt = isinstance(error, KeyboardInterrupt)
    if not path or (not is_interrupt and ending is not None and ending.is_joined()):
        return True
    text = "".join(traceback.format_exception(type(error), error, shown))
    if is_interrupt:
        text = "Ctrl-C"  # it finds each rank somewhere else; one of these places is enough
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    try:
        with open(os.path.join(os.path.dirname(path), digest), "x"):
            return True
    except FileExistsError:
        return False
    except OSError:  # a full disk must not hide the error
        return True


def note_exit(code: object) -> None:
    """Note the code that the process will end with, for the runtime's way out, if the script has
    loaded it.
    """
    ending: Any = sys.modules.get("oneflow.distributed.ending")
    if ending is not None:
        ending.note_exit(code)


def _is_ours(error: BaseException) -> TypeGuard[Any]:
    """Tell whether it is a OneFlowError, without an import that the script did not make."""
    own = getattr(sys.modules.get("oneflow.core.errors"), "OneFlowError", None)
    return own is not None and isinstance(error, own)


def _user_part(error: BaseException, own_file: str) -> TracebackType | None:
    """The traceback without our frames and runpy's, as plain python would show it."""
    shown = error.__traceback__
    while shown is not None:
        name = shown.tb_frame.f_code.co_filename
        if name not in (own_file, runpy.__file__) and not name.startswith("<frozen runpy"):
            break
        shown = shown.tb_next
    return shown


def _is_path_safe() -> bool:
    """Whether python was told (PYTHONSAFEPATH) to put no folder of the script on the path."""
    return bool(getattr(sys.flags, "safe_path", False))


def _hides(argv: list[str], names: set[str]) -> bool:
    """Whether modules beside the script, or within it, come before those of such names that have
    been imported.
    """
    if _is_path_safe():
        return False
    beside = os.path.dirname(os.path.realpath(argv[0]))
    folders = [os.getcwd()] if argv[0] == "-m" else [argv[0], beside]
    for name in names - set(sys.builtin_module_names):
        found = None if "." in name else importlib.machinery.PathFinder.find_spec(name, folders)
        if found is not None and found.origin is not None:  # a folder without __init__ comes last
            used = getattr(sys.modules[name], "__file__", None)
            if used is None or os.path.realpath(found.origin) != os.path.realpath(used):
                return True
    return False


def _is_source(script: str) -> bool:
    """Whether `script` is Python text; an archive or a compiled file is not."""
    with open(script, "rb") as file:
        start = file.read(4)
    return not (start[:2] == b"PK" or script.endswith(".pyc"))


def _fresh_main(script: str | None) -> ModuleType:
    """An empty __main__ for the script, so that pickling and multiprocessing find it there."""
    main_module = ModuleType("__main__")
    main_module.__dict__["__builtins__"] = builtins
    if script is not None:
        loader = importlib.machinery.SourceFileLoader("__main__", script)
        found = {"__file__": script, "__loader__": loader, "__cached__": None}
        main_module.__dict__.update(found, __annotations__={})
    sys.modules["__oneflow_worker__"] = sys.modules["__main__"]  # or its globals would go with it
    sys.modules["__main__"] = main_module
    return main_module


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[0] == "--fork":
        words = words[2:]
        if not become_rank(int(sys.argv[2]), words):
            os._exit(0)
    main(words)
