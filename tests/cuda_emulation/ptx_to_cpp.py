"""PTX -> C++ that runs on a CPU, with one fiber a thread where threads meet.

    python ptx_to_cpp.py in.ptx out.cpp

The functions that the C++ calls stand in emu.h. An instruction that is not known ends the
translation with its text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import ptx
import ptx_writers  # noqa: F401  (each writer enters itself)
from ptx import NBITS
from ptx_body import UNSIGNED, Body, Module, float_bits, head, number, offsets, plain

OF_THE_HOST: dict[str, Callable[[ptx.Function], str]] = {
    "vprintf": lambda f: f"emu_vprintf(*(char**){_arg(f, 0)}, *(char**){_arg(f, 1)});",
    "__assertfail": lambda f: (
        f'fprintf(stderr, "%s: ", *(char**){_arg(f, 3)}); emu_trap(*(char**){_arg(f, 0)});'
    ),
    "malloc": lambda f: (
        f"void* p = malloc(*(uint64_t*){_arg(f, 0)}); memcpy({plain(f.results[0].name)},&p,8);"
    ),
    "free": lambda f: f"free(*(void**){_arg(f, 0)});",
}
"""Functions of the device that a module declares and CUDA has."""

_ADDRESS_OF = re.compile(r"(?:generic\()?([^)+]+)\)?(?:\+(\d+))?$")


class Translator(Module):
    """A module, and its text in C++."""

    def translate(self, text: str) -> str:
        functions: list[ptx.Function] = []
        for item in ptx.read(text):
            if isinstance(item, ptx.Variable):
                self.declare(item)
            else:
                functions.append(item)
        devices = {f.name: f for f in functions if not f.is_entry}
        bodies = [f for f in functions if f.body is not None]
        defined = {f.name for f in bodies}
        declared = [f"static void {head(f)};" for f in devices.values()]
        declared += [_of_the_host(f) for f in devices.values() if f.name not in defined]
        syncs: dict[str, bool] = {}
        code = []
        for function in bodies:
            body = Body(self, function)
            code.append(body.code)
            if function.is_entry:
                syncs[function.name] = body.syncs or self.functions_sync
            elif body.syncs:
                self.functions_sync = True
        entries = [f for f in bodies if f.is_entry]
        parts = ['#include "emu.h"', *map(self._global, self.globals.values()), *declared, *code]
        parts += map(_parameter_table, entries)
        rows = [
            f'{{"{f.name}", k_{plain(f.name)}, {len(f.parameters)}, p_{plain(f.name)}, '
            f"{int(syncs[f.name])}}}"
            for f in entries
        ]
        parts.append(_table("EmuEntry emu_entries", [*rows, "{0,0,0,0,0}"]))
        names = map(plain, self.globals)
        cells = [
            f'{{"{name}", (void*)g_{c}, sizeof(g_{c})}}'
            for name, c in zip(self.globals, names, strict=True)
        ]
        parts.append(_table("EmuGlobal emu_globals", [*cells, "{0,0,0}"]))
        parts.append(f'extern "C" const unsigned emu_shared = {self.shared_nbytes};')
        return "\n".join([*parts, ""])

    def _global(self, variable: ptx.Variable) -> str:
        count, values = variable.count, ""
        if variable.initial is not None:
            texts = [x.strip() for x in variable.initial.strip("{}").split(",") if x.strip()]
            values = f" = {{{','.join(self._constant(x, variable.type) for x in texts)}}}"
            count = max(count, len(texts))
        type_ = UNSIGNED[NBITS[variable.type]]
        align = max(variable.align, 8)
        return f"alignas({align}) static {type_} g_{plain(variable.name)}[{count}]{values};"

    def _constant(self, text: str, type_: str) -> str:
        if bits := float_bits(text):
            return bits
        value = number(text, NBITS[type_])
        if value is not None:
            return f"{value}ull" if value > 0x7FFFFFFF else str(value)
        match = ptx.found(_ADDRESS_OF, text)
        return f"(uint64_t)((char*)g_{plain(match[1])}+{match[2] or 0})"


def _of_the_host(function: ptx.Function) -> str:
    write = OF_THE_HOST.get(function.name)
    body = write(function) if write else f'emu_trap("extern {function.name}");'
    return f"static void {head(function)} {{ {body} }}"


def _parameter_table(entry: ptx.Function) -> str:
    cells = [f"{{{at},{p.nbytes}}}" for p, at in offsets(entry.parameters)]
    return f"static const EmuParam p_{plain(entry.name)}[] = {{{','.join(cells) or '{0,0}'}}};"


def _table(name: str, rows: Sequence[str]) -> str:
    return f'extern "C" const {name}[] = {{{",".join(rows)}}};'


def _arg(function: ptx.Function, index: int) -> str:
    return plain(function.parameters[index].name)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    text = source.read_text(encoding="utf-8", errors="replace").rstrip("\0")
    target.write_text(Translator().translate(text))
