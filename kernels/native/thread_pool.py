"""Threads that share the pieces of one kernel call.

The caller lays out tables of int64, one for each piece or one for all, and hands all pieces out at
once; a function gets its table and the number of its piece. Each thread has a share of neighbouring
pieces, the same for one call as for the next, so that it finds in its cache the data that it has
written there. When its share is done it takes pieces of the others', so that a helper whose core is
busy elsewhere holds up at most the piece it has begun. The result of a piece never depends on the
thread that computes it, or on how many helpers there are. All of it is machine code, which needs no
interpreter lock and makes no objects.

A job's fields may be read by any thread that holds one of its pieces: its caller waits for all of
them, and only then may the next job overwrite the fields. Shares are counts of pieces that go down:
a helper that comes too late finds nothing left, or a piece of the next job, whose fields it reads
then.

Helpers, and a caller that waits for the last pieces, spin for a moment and then sleep on a futex.
A helper sleeps on a word of its own that grows with each job; `asleep` says whether it has to be
woken. A second caller that finds the pool busy does its pieces itself. So does every caller for a
while after one had to wait for longer than a piece takes: then other programs want the cores.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Protocol

from oneflow.core.config import current_config
from oneflow.core.log import get_logger
from oneflow.kernels import threads as limits
from oneflow.kernels.native.machine_code import address_of, machine
from oneflow.kernels.native.machine_code import stored as kept_code

_MACHINES = {"x86_64": (202, "x86.sse2.pause()"), "aarch64": (98, "aarch64.hint(i32 1)")}
"""Number of the system call futex, and the instruction for a processor that spins."""
_log = get_logger(__name__)
_LINE = 64
_LOOKS = 32
"""Looks at a word between two at the clock."""

_MOST_HELPERS = 255
# Bytes from the beginning of the pool's memory, which several threads write: a line of the cache
# for each thing that is written by itself.
_AT = {
    "busy": 0, "spin": 8, "alone_until": 16,
    "done": 1 * _LINE, "waits": 1 * _LINE + 4,
    "function": 2 * _LINE, "tables": 2 * _LINE + 8, "stride": 2 * _LINE + 16,
    "count": 2 * _LINE + 24, "refused": 2 * _LINE + 32, "threads": 2 * _LINE + 40,
    "helpers": 3 * _LINE, "shares": (3 + _MOST_HELPERS) * _LINE,
}  # fmt: skip

_COMMON = """
declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare void @llvm.{pause_type}

define internal i64 @now() nounwind {{
  %time = alloca [2 x i64]
  call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest_at
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}}

define internal void @sleep(ptr %word, i32 %seen) nounwind {{
  call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i64 128, i32 %seen, ptr null)
  ret void
}}

define internal void @wake(ptr %word) nounwind {{
  call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i64 129, i64 1)
  ret void
}}

; Look at a word until it is not `seen`, or for as long as waits spin. Returns what was read last.
define internal i32 @look(ptr %state, ptr %word, i32 %seen) nounwind {{
entry:
  %spin_at = getelementptr i8, ptr %state, i64 {spin}
  %spin = load i64, ptr %spin_at
  %begin = call i64 @now()
  br label %some
some:
  br label %one
one:
  %turn = phi i64 [ 0, %some ], [ %following, %again ]
  %value = load atomic i32, ptr %word acquire, align 4
  %is_same = icmp eq i32 %value, %seen
  br i1 %is_same, label %again, label %out
again:
  call void @llvm.{pause}
  %following = add i64 %turn, 1
  %more = icmp slt i64 %following, {looks}
  br i1 %more, label %one, label %clock
clock:
  %time = call i64 @now()
  %past = sub i64 %time, %begin
  %is_early = icmp slt i64 %past, %spin
  br i1 %is_early, label %some, label %out
out:
  %last = phi i32 [ %value, %one ], [ %seen, %clock ]
  ret i32 %last
}}

; Take the pieces of the own share, then those left of the others'. Returns the nanoseconds of the
; longest.
define internal i64 @take(ptr %state, i64 %self) nounwind {{
entry:
  %shares = getelementptr i8, ptr %state, i64 {shares}
  %threads_at = getelementptr i8, ptr %state, i64 {threads}
  %done_at = getelementptr i8, ptr %state, i64 {done}
  %waits_at = getelementptr i8, ptr %state, i64 {waits}
  %function_at = getelementptr i8, ptr %state, i64 {function}
  %tables_at = getelementptr i8, ptr %state, i64 {tables}
  %stride_at = getelementptr i8, ptr %state, i64 {stride}
  %count_at = getelementptr i8, ptr %state, i64 {count}
  %refused_at = getelementptr i8, ptr %state, i64 {refused}
  br label %share
share:
  %visited = phi i64 [ 0, %entry ], [ %visiting, %following ]
  %longest_before = phi i64 [ 0, %entry ], [ %longest, %following ]
  %sharers = load atomic i64, ptr %threads_at seq_cst, align 8
  %is_share = icmp slt i64 %visited, %sharers
  br i1 %is_share, label %visit, label %out
following:
  %visiting = add i64 %visited, 1
  br label %share
visit:
  %place = add i64 %self, %visited
  %whose = urem i64 %place, %sharers
  %share_offset = mul i64 %whose, {line}
  %remaining_at = getelementptr i8, ptr %shares, i64 %share_offset
  br label %next
next:
  %longest = phi i64 [ %longest_before, %visit ], [ %longer, %ended ], [ %longer, %tell ]
  %left = atomicrmw sub ptr %remaining_at, i64 1 seq_cst
  %is_any = icmp sgt i64 %left, 0
  br i1 %is_any, label %piece, label %following
piece:
  %function = load ptr, ptr %function_at
  %tables = load ptr, ptr %tables_at
  %stride = load i64, ptr %stride_at
  %count = load i64, ptr %count_at
  %threads = load atomic i64, ptr %threads_at seq_cst, align 8
  %next_share = add i64 %whose, 1
  %scaled_end = mul i64 %count, %next_share
  %share_end = udiv i64 %scaled_end, %threads
  %number = sub i64 %share_end, %left
  %offset = mul i64 %number, %stride
  %table = getelementptr i8, ptr %tables, i64 %offset
  %begin = call i64 @now()
  %code = call i32 %function(ptr %table, i64 %number)
  %end = call i64 @now()
  %time = sub i64 %end, %begin
  %is_longer = icmp sgt i64 %time, %longest
  %longer = select i1 %is_longer, i64 %time, i64 %longest
  %is_refused = icmp ne i32 %code, 0
  br i1 %is_refused, label %refuse, label %count_it
refuse:
  store atomic i64 1, ptr %refused_at monotonic, align 8
  br label %count_it
count_it:
  %before = atomicrmw add ptr %done_at, i32 1 seq_cst
  %before_wide = sext i32 %before to i64
  %after = add i64 %before_wide, 1
  %is_last = icmp eq i64 %after, %count
  br i1 %is_last, label %look_at_caller, label %ended
look_at_caller:
  %waits = load atomic i32, ptr %waits_at seq_cst, align 4
  %has_to = icmp ne i32 %waits, 0
  br i1 %has_to, label %tell, label %ended
tell:
  call void @wake(ptr %done_at)
  br label %next
ended:
  br label %next
out:
  ret i64 %longest_before
}}
"""

_HELPER = """
define i32 @KERNEL(ptr %state, i64 %index, i64 %first) nounwind {{
entry:
  %offset = mul i64 %index, {line}
  %lines = getelementptr i8, ptr %state, i64 {helpers}
  %word = getelementptr i8, ptr %lines, i64 %offset
  %asleep_at = getelementptr i8, ptr %word, i64 4
  %begun = trunc i64 %first to i32
  %self = add i64 %index, 1
  br label %job
job:
  %seen = phi i32 [ %begun, %entry ], [ %value, %woken ]
  call i64 @take(ptr %state, i64 %self)
  %looked = call i32 @look(ptr %state, ptr %word, i32 %seen)
  %is_new = icmp ne i32 %looked, %seen
  br i1 %is_new, label %woken, label %drowse
drowse:
  store atomic i32 1, ptr %asleep_at seq_cst, align 4
  br label %check
check:
  %again = load atomic i32, ptr %word seq_cst, align 4
  %has_work = icmp ne i32 %again, %seen
  br i1 %has_work, label %rise, label %rest
rest:
  call void @sleep(ptr %word, i32 %seen)
  br label %check
rise:
  store atomic i32 0, ptr %asleep_at seq_cst, align 4
  br label %woken
woken:
  %value = phi i32 [ %looked, %job ], [ %again, %rise ]
  br label %job
}}
"""

_CALLER = """
declare i64 @llvm.smin.i64(i64, i64)

; Returns whether a piece refused.
define i32 @KERNEL(
  ptr %state, ptr %function, ptr %tables, i64 %stride, i64 %count, i64 %helpers
) nounwind {{
entry:
  %busy_at = getelementptr i8, ptr %state, i64 {busy}
  %alone_until_at = getelementptr i8, ptr %state, i64 {alone_until}
  %pair = cmpxchg ptr %busy_at, i64 0, i64 1 seq_cst seq_cst
  %is_mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %is_mine, label %ask, label %alone
ask:
  %start = call i64 @now()
  %alone_until = load i64, ptr %alone_until_at
  %is_late = icmp sge i64 %start, %alone_until
  br i1 %is_late, label %share, label %free_alone
free_alone:
  store atomic i64 0, ptr %busy_at seq_cst, align 8
  br label %alone

share:
  %function_at = getelementptr i8, ptr %state, i64 {function}
  %tables_at = getelementptr i8, ptr %state, i64 {tables}
  %stride_at = getelementptr i8, ptr %state, i64 {stride}
  %count_at = getelementptr i8, ptr %state, i64 {count}
  %refused_at = getelementptr i8, ptr %state, i64 {refused}
  %done_at = getelementptr i8, ptr %state, i64 {done}
  %waits_at = getelementptr i8, ptr %state, i64 {waits}
  %shares = getelementptr i8, ptr %state, i64 {shares}
  %threads_at = getelementptr i8, ptr %state, i64 {threads}
  %threads = add i64 %helpers, 1
  %lines = getelementptr i8, ptr %state, i64 {helpers}
  %count_low = trunc i64 %count to i32
  store ptr %function, ptr %function_at
  store ptr %tables, ptr %tables_at
  store i64 %stride, ptr %stride_at
  store i64 %count, ptr %count_at
  store i64 0, ptr %refused_at
  store atomic i32 0, ptr %done_at seq_cst, align 4
  store atomic i64 %threads, ptr %threads_at seq_cst, align 8
  br label %give
give:
  %v = phi i64 [ 0, %share ], [ %next_v, %give ]
  %share_offset = mul i64 %v, {line}
  %remaining_at = getelementptr i8, ptr %shares, i64 %share_offset
  %next_v = add i64 %v, 1
  %scaled_begin = mul i64 %count, %v
  %scaled_end = mul i64 %count, %next_v
  %share_begin = udiv i64 %scaled_begin, %threads
  %share_end = udiv i64 %scaled_end, %threads
  %share_count = sub i64 %share_end, %share_begin
  store atomic i64 %share_count, ptr %remaining_at seq_cst, align 8
  %gives = icmp slt i64 %next_v, %threads
  br i1 %gives, label %give, label %call
call:
  %k = phi i64 [ 0, %give ], [ %next_k, %called ]
  %calls = icmp slt i64 %k, %helpers
  br i1 %calls, label %call_one, label %join
call_one:
  %offset = mul i64 %k, {line}
  %word = getelementptr i8, ptr %lines, i64 %offset
  %asleep_at = getelementptr i8, ptr %word, i64 4
  atomicrmw add ptr %word, i32 1 seq_cst
  %asleep = load atomic i32, ptr %asleep_at seq_cst, align 4
  %sleeps = icmp ne i32 %asleep, 0
  br i1 %sleeps, label %rouse, label %called
rouse:
  call void @wake(ptr %word)
  br label %called
called:
  %next_k = add i64 %k, 1
  br label %call
join:
  %longest = call i64 @take(ptr %state, i64 0)
  %begin = call i64 @now()
  br label %ended
ended:
  %done = load atomic i32, ptr %done_at seq_cst, align 4
  %is_all = icmp eq i32 %done, %count_low
  br i1 %is_all, label %all, label %wait
wait:
  %looked = call i32 @look(ptr %state, ptr %done_at, i32 %done)
  %is_new = icmp ne i32 %looked, %done
  br i1 %is_new, label %ended, label %drowse
drowse:
  store atomic i32 1, ptr %waits_at seq_cst, align 4
  br label %check
check:
  %again = load atomic i32, ptr %done_at seq_cst, align 4
  %is_over = icmp eq i32 %again, %count_low
  br i1 %is_over, label %rise, label %rest
rest:
  call void @sleep(ptr %done_at, i32 %again)
  br label %check
rise:
  store atomic i32 0, ptr %waits_at seq_cst, align 4
  br label %all
all:
  %end = call i64 @now()
  %waited = sub i64 %end, %begin
  %twice = mul i64 %longest, {patience}
  %limit = add i64 %twice, {least_wait}
  %is_long = icmp sgt i64 %waited, %limit
  br i1 %is_long, label %be_alone, label %told
be_alone:
  %pause = mul i64 %waited, {alone_for}
  %capped = call i64 @llvm.smin.i64(i64 %pause, i64 {most_alone})
  %until = add i64 %end, %capped
  store i64 %until, ptr %alone_until_at
  br label %told
told:
  %refused = load atomic i64, ptr %refused_at seq_cst, align 8
  %low = trunc i64 %refused to i32
  store atomic i64 0, ptr %busy_at seq_cst, align 8
  ret i32 %low

alone:
  br label %each
each:
  %i = phi i64 [ 0, %alone ], [ %next_i, %one ]
  %code = phi i32 [ 0, %alone ], [ %codes, %one ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %out
one:
  %place = mul i64 %i, %stride
  %table = getelementptr i8, ptr %tables, i64 %place
  %own = call i32 %function(ptr %table, i64 %i)
  %is_refused = icmp ne i32 %own, 0
  %bit = zext i1 %is_refused to i32
  %codes = or i32 %code, %bit
  %next_i = add i64 %i, 1
  br label %each
out:
  ret i32 %code
}}
"""
_PATIENCE = 2
"""Times the caller's longest piece that a wait for the last pieces may take, and LEAST_WAIT more.
Imbalance alone makes waits of up to one piece."""
_LEAST_WAIT_NS = 100_000
_ALONE_FOR = 4
"""Times the length of such a wait that calls stay on one thread: a fifth is lost at most."""
_MOST_ALONE_NS = 50_000_000


def _text(body: str) -> str:
    """The text of a function of the pool for this machine."""
    return (_COMMON + body).format(
        **_AT,
        futex=_MACHINES[platform.machine()][0],
        pause=_pause(),
        pause_type=_pause().replace(" 1", ""),
        line=_LINE,
        looks=_LOOKS,
        patience=_PATIENCE,
        least_wait=_LEAST_WAIT_NS,
        alone_for=_ALONE_FOR,
        most_alone=_MOST_ALONE_NS,
        most_looks=_MOST_LOOKS,
    )


def _pause() -> str:
    return _MACHINES[platform.machine()][1]


class Pool(Protocol):
    """A way to share the pieces of a call among threads."""

    def hand_out(self, function: int, tables: bytes, stride: int, count: int, threads: int) -> bool:
        """Call the function at an address for each number below `count`, with its table.

        stride: bytes from one table to the next, or 0. Returns whether a piece refused.
        """


class NativePool:
    """A pool whose waits are machine code. Its threads begin with the first call that wants them.

    They are daemon threads of Python, which then never take the interpreter lock again.
    """

    def __init__(self) -> None:
        nbytes = _AT["shares"] + _LINE * (1 + _MOST_HELPERS)
        self._memory = ctypes.create_string_buffer(nbytes + _LINE)
        address = ctypes.addressof(self._memory)
        self._state = address + -address % _LINE
        self._word("spin").value = int(current_config().spin_s * 1e9)
        kinds = *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3
        caller = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)
        self._call: Callable[..., int] = caller(address_of(_text(_CALLER)))
        self._threads: list[threading.Thread] = []
        self._most = _MOST_HELPERS
        self._lock = threading.Lock()

    def _word(self, name: str) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self._state + _AT[name])

    def hand_out(self, function: int, tables: bytes, stride: int, count: int, threads: int) -> bool:
        """See `Pool`."""
        helpers = min(threads - 1, count - 1, self._most)
        if len(self._threads) < helpers:
            self._begin(helpers)
            helpers = min(helpers, self._most)
        return bool(self._call(self._state, function, tables, stride, count, helpers))

    def _begin(self, helpers: int) -> None:
        with self._lock:
            for i in range(len(self._threads), helpers):
                thread = threading.Thread(
                    target=self._help, args=(i,), name=f"kernels-{i}", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:  # a limit of the system: fewer do the same work
                    _log.warning("kernels use %d threads, no more can be begun: %s", i + 1, error)
                    self._most = i
                    break
                self._threads.append(thread)
                if i == 0:
                    self._tell()

    def _help(self, index: int) -> None:
        kinds = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
        run = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(address_of(_text(_HELPER)))
        word = self._state + _AT["helpers"] + _LINE * index
        run(self._state, index, ctypes.c_int32.from_address(word).value)

    def _tell(self) -> None:
        """Let those that cut work know how long a helper takes to wake, and whether it sleeps."""
        stored, name = kept_code(), _digest()
        entry = stored.get(name)
        if entry is None:
            entry = struct.pack("d", self._waking_ns())
            stored.put(name, entry)
        (waking_ns,) = struct.unpack("d", entry)
        least = min(int(_WORTH * waking_ns / limits.ELEMENT_NS), _MOST_ALONE)
        asleep = ctypes.c_int32.from_address(self._state + _AT["helpers"] + 4)
        asleep.of = self._memory  # type: ignore[attr-defined]  # keeps it
        limits.watch_helpers(limits.Helpers(asleep, least))

    def _waking_ns(self) -> float:
        """Measure how long a helper that sleeps takes to come: each of two pieces waits for the
        other to begin. The third of the shortest times: other programs only make them longer."""
        meet, times = address_of(_text(_MEET)), []
        for _ in range(_ROUNDS):
            table = (ctypes.c_int64 * 1)(0)
            time.sleep(2 * current_config().spin_s + _REST_S)
            begin = time.perf_counter_ns()
            self._call(self._state, meet, table, 0, 2, 1)
            times.append(time.perf_counter_ns() - begin)
        return float(sorted(times)[2])


_WORTH = 4
"""Times the time that helpers take to wake from which work is worth to wake them."""
_MOST_ALONE = 1 << 21
_ROUNDS, _REST_S = 9, 0.0001
_MOST_LOOKS = 1 << 14
_MEET = """
define i32 @KERNEL(ptr %begun, i64 %number) nounwind {{
entry:
  atomicrmw add ptr %begun, i64 1 seq_cst
  br label %look
look:
  %turn = phi i64 [ 0, %entry ], [ %following, %again ]
  %count = load atomic i64, ptr %begun seq_cst, align 8
  %is_met = icmp sge i64 %count, 2
  br i1 %is_met, label %out, label %again
again:
  call void @llvm.{pause}
  %following = add i64 %turn, 1
  %more = icmp slt i64 %following, {most_looks}
  br i1 %more, label %look, label %out
out:
  ret i32 0
}}
"""


def _digest() -> str:
    """The name under which the time that a helper takes to wake is kept."""
    return hashlib.sha256(f"waking\0{machine().identity}".encode()).hexdigest()


_PIECE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)


class PythonPool:
    """The same by Python's own waits, for systems without futexes."""

    def __init__(self) -> None:
        self._executor = cache(lambda helpers: ThreadPoolExecutor(helpers, "kernels"))

    def hand_out(self, function: int, tables: bytes, stride: int, count: int, threads: int) -> bool:
        """See `Pool`."""
        call: Callable[[bytes, int], int] = _PIECE(function)
        numbers = iter(range(count))  # a range's iterator hands each number out once

        def take() -> bool:
            codes = [call(tables[i * stride :], i) for i in numbers]
            return any(codes)

        helpers = min(threads, count) - 1
        executor = self._executor(helpers) if helpers else None
        others = [executor.submit(take) for _ in range(helpers)] if executor else []
        refused = take()
        return any([other.result() for other in others]) or refused


def has_futexes() -> bool:
    """Whether `NativePool` can run on this system."""
    return sys.platform == "linux" and sys.maxsize > 1 << 32 and platform.machine() in _MACHINES


@cache
def pool() -> Pool:
    """The pool of this process."""
    return NativePool() if has_futexes() else PythonPool()


def hand_out(function: int, tables: bytes, stride: int, count: int) -> bool:
    """Call the function at an address for each number below `count`, with its table, in threads.

    stride: bytes from one table to the next, or 0. Returns whether a piece refused.
    """
    limits.count_pieces(count)
    return pool().hand_out(function, tables, stride, count, limits.num_threads())


def hand_out_loop(parameters: str, tables: bytes, stride: int, count: int) -> bool:
    """The same for a compiled loop (loops.py), whose parameters are these.

    Tables: address of the loop; size of its outermost dim, of which all but the last piece get a
    multiple of a unit; the unit; the number of pieces; then the parameters, table and check.
    """
    return hand_out(piece_caller(parameters), tables, stride, count)


@lru_cache(maxsize=1024)
def piece_caller(parameters: str) -> int:
    """Address of the function that calls a loop with the numbers of a table."""
    types = ["double" if kind == "d" else "i64" for kind in (*parameters, "q", "q")]
    lines, given = [], []
    for i, kind in enumerate(("ptr", "i64", "i64", "i64", *types)):
        lines.append(f"%at{i} = getelementptr i64, ptr %numbers, i64 {i}")
        lines.append(f"%n{i} = load {kind}, ptr %at{i}")
        given.append(f"{kind} %n{i}")
    lines += [
        "%units = udiv i64 %n1, %n2", "%following = add i64 %number, 1",
        "%a0 = mul i64 %units, %number", "%a1 = mul i64 %units, %following",
        "%b0 = udiv i64 %a0, %n3", "%b1 = udiv i64 %a1, %n3",
        "%begin = mul i64 %b0, %n2", "%inner = mul i64 %b1, %n2",
        "%is_last = icmp eq i64 %following, %n3",
        "%end = select i1 %is_last, i64 %n1, i64 %inner",
        f"%code = call i32 %n0({', '.join([*given[4:], 'i64 %begin', 'i64 %end'])})",
        "ret i32 %code",
    ]  # fmt: skip
    body = "\n  ".join(lines)
    return address_of(f"define i32 @KERNEL(ptr %numbers, i64 %number) nounwind {{\n  {body}\n}}\n")


os.register_at_fork(after_in_child=pool.cache_clear)  # a fork has none of the pool's threads
