"""The C++ of each instruction of PTX."""

from __future__ import annotations

import re
from collections.abc import Sequence

import ptx
from ptx import NBITS, NotEmulated
from ptx_body import (
    BITS_OF_VALUE,
    FLOATS,
    PAIRS,
    SHORT_LANE,
    SIGNED,
    UNSIGNED,
    VALUE_OF_BITS,
    WIDE,
    Body,
    Instruction,
    c_type,
    c_unsigned,
    packed,
    plain,
    vector,
    writes,
)

ROUNDED = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
DIRECTIONS = ("rz", "rm", "rp")
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu")
TRUTH = {"and": "&&", "or": "||", "xor": "!="}
ONES = {"f32": "0x3f800000u", "f16": "0x3c00u", "bf16": "0x3f80u"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARISONS |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
CLASSES = {
    "finite": "std::isfinite({})",
    "infinite": "std::isinf({})",
    "number": "!std::isnan({})",
    "notanumber": "std::isnan({})",
    "normal": "std::isnormal({})",
    "subnormal": "(std::fpclassify({})==FP_SUBNORMAL)",
}
LOGIC = {"and": "&", "or": "|", "xor": "^"}
_CALL = re.compile(
    r"(?:\((.*?)\)\s*,\s*)?([^\s,(]+)\s*(?:,\s*\((.*?)\))?\s*(?:,\s*(\S+))?$", re.DOTALL
)


# ---- moves and memory ----------------------------------------------------------------------------


@writes("mov")
def _mov(body: Body, x: Instruction) -> str:
    to, source = x.operands
    n = x.nbits
    if to.startswith("{"):
        registers = vector(to)
        each = n // len(registers)
        value = plain(source) if n == 128 else body.bits(source, n)
        parts = [
            f"{plain(r)}=({UNSIGNED[each]})(v_>>{each * k});"
            for k, r in enumerate(registers)
            if r != "_"
        ]
        return f"{x.c} v_={value}; {' '.join(parts)}"
    if source.startswith("{"):
        registers = vector(source)
        each = n // len(registers)
        parts = [
            f"(({x.c})({UNSIGNED[each]})({body.bits(r, each)})<<{each * k})"
            for k, r in enumerate(registers)
        ]
        return f"{plain(to)} = {' | '.join(parts)};"
    if x.type == "pred":
        return body.set(x, body.bits(source, 1))
    return body.set(x, f"({x.c})({body.bits(source, min(n, 64))})")


def _space(x: Instruction, *names: str) -> str:
    if x.is_in_shared:
        return "shared"
    return next((m for m in x.mods if m in names), "generic")


def _counted(x: Instruction, space: str, registers: Sequence[str], what: str) -> str:
    if space not in ("global", "generic"):
        return ""
    return f"emu_bytes_{what} += {len(registers) * x.nbits // 8}; "


@writes("ld", "ldu")
def _ld(body: Body, x: Instruction) -> str:
    space = _space(x, "param", "global", "local", "const")
    at = body.address(x.operands[1], space)
    registers = vector(x.operands[0])
    count = _counted(x, space, registers, "loaded")
    c = c_type(x.type)
    if len(registers) == 1:
        read = f"{c} v_; memcpy(&v_, {at}, sizeof v_);"
        return f"{count}{read} {plain(registers[0])} = v_;"
    read = f"char* p_ = {at}; {c} v_[{len(registers)}]; memcpy(v_, p_, sizeof v_);"
    kept = [f"{plain(r)} = v_[{k}];" for k, r in enumerate(registers) if r != "_"]
    return f"{count}{' '.join([read, *kept])}"


@writes("st")
def _st(body: Body, x: Instruction) -> str:
    space = _space(x, "param", "global", "local")
    at = body.address(x.operands[0], space)
    registers = vector(x.operands[1])
    values = ",".join(f"({x.c})({body.bits(r, x.nbits)})" for r in registers)
    count = _counted(x, space, registers, "stored")
    return f"{count}{x.c} v_[{len(registers)}] = {{{values}}}; memcpy({at}, v_, sizeof v_);"


@writes("cvta")
def _cvta(body: Body, x: Instruction) -> str:
    value = body.bits(x.operands[1], 64)
    if x.is_in_shared:
        if "to" in x.mods:
            value = f"(uint64_t)((char*)(uint64_t){value} - t->shared)"
        else:
            value = f"(uint64_t)(t->shared + (uint32_t){value})"
    return f"{plain(x.operands[0])} = {value};"


@writes("isspacep")
def _isspacep(body: Body, x: Instruction) -> str:
    is_shared = f"emu_is_shared(t,(char*){body.bits(x.operands[1], 64)})"
    answers = {"global": f"!{is_shared}"}
    answer = is_shared if x.is_in_shared else answers.get(x.mods[0], "false")
    return f"{plain(x.operands[0])} = {answer};"


@writes("atom", "red")
def _atom(body: Body, x: Instruction) -> str:
    """Threads take turns, so reading, computing and writing is enough."""
    space = _space(x, "global")
    kind = x.one_of("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
    to, (at, *operands) = (None, x.operands) if x.op == "red" else (x.operands[0], x.operands[1:])
    c, values = x.c, [body.bits(v, x.nbits) for v in operands]
    old = f"{c}* a_=({c}*){body.address(at, space)}; {c} old_; memcpy(&old_,a_,sizeof old_);"
    new = _replacement(x, kind, values)
    code = f"{old} {c} new_; {new} memcpy(a_,&new_,sizeof new_);"
    if space != "shared":
        nbytes = x.nbits // 8
        code += f" emu_bytes_loaded += {nbytes}; emu_bytes_stored += {nbytes};"
    return code if to in (None, "_") else f"{code} {plain(str(to))}=old_;"


def _replacement(x: Instruction, kind: str, values: Sequence[str]) -> str:
    """`new_` from `old_`."""
    c, v, type_ = x.c, values[0], x.type
    if kind == "cas":
        return f"new_=(old_==({c}){v})?({c}){values[1]}:old_;"
    if kind == "exch":
        return f"new_={v};"
    if type_ in FLOATS or type_ in PAIRS:
        if kind != "add":
            raise NotEmulated(x.text)
        if type_ in FLOATS:
            value = VALUE_OF_BITS[type_]
            return f"new_={packed(f'{value}(old_)+{value}({v})', type_)};"
        k = PAIRS[type_]
        low = f"(uint32_t)f2{k}({k}2f((uint16_t)old_)+{k}2f((uint16_t)b_))"
        high = f"(uint32_t)f2{k}({k}2f((uint16_t)(old_>>16))+{k}2f((uint16_t)(b_>>16)))"
        return f"uint32_t b_={v}; new_={low} | ({high}<<16);"
    if kind == "add":
        return f"new_=old_+({c}){v};"
    if kind in LOGIC:
        return f"new_=old_ {LOGIC[kind]} ({c}){v};"
    if kind in ("min", "max"):
        t, sign = c_type(type_), "<" if kind == "min" else ">"
        return f"new_=({c})((({t})old_ {sign} ({t}){v})?old_:({c}){v});"
    if kind == "inc":
        return f"new_=(old_>=({c}){v})?0:old_+1;"
    return f"new_=(old_==0||old_>({c}){v})?({c}){v}:old_-1;"


# ---- arithmetic ----------------------------------------------------------------------------------


@writes("add", "sub")
def _add(body: Body, x: Instruction) -> str:
    sign = "+" if x.op == "add" else "-"
    if x.is_float:
        a, b = (body.flushed(x, operand) for operand in x.operands[1:3])
        return body.set_real(x, f"{a} {sign} {b}")
    c, to = x.c, plain(x.operands[0])
    a, b = (body.bits(operand, x.nbits) for operand in x.operands[1:3])
    if "cc" in x.mods and x.op == "add":
        carry = f"cc=(uint32_t)(r_>>{x.nbits})&1;"
        return f"{WIDE} r_=({WIDE})({c}){a}+({c}){b}; {to}=({c})r_; {carry}"
    if "cc" in x.mods:
        return f"{c} a_={a}, b_={b}; {to}=a_-b_; cc=a_<b_;"
    if "sat" in x.mods:
        a, b = (body.integer(operand, "s32") for operand in x.operands[1:3])
        return f"{to}=satadd((int64_t){a} {sign} {b});"
    return body.set(x, f"({c})(({c}){a} {sign} ({c}){b})")


@writes("addc", "subc")
def _addc(body: Body, x: Instruction) -> str:
    c, to = x.c, plain(x.operands[0])
    a, b = (body.bits(operand, x.nbits) for operand in x.operands[1:3])
    keeps = "cc" in x.mods
    if x.op == "addc":
        code = f"{WIDE} r_=({WIDE})({c}){a}+({c}){b}+cc; {to}=({c})r_;"
        return f"{code} cc=(uint32_t)(r_>>{x.nbits})&1;" if keeps else code
    code = f"{c} a_={a}, b_={b}; uint32_t c_=cc; {to}=a_-b_-c_;"
    return f"{code} cc=(({WIDE})a_ < ({WIDE})b_+c_);" if keeps else code


@writes("mul")
def _mul(body: Body, x: Instruction) -> str:
    if x.is_float:
        a, b = (body.flushed(x, operand) for operand in x.operands[1:3])
        return body.set_real(x, f"{a} * {b}")
    return body.set(x, body.product(x))


@writes("mad", "fma", "madc")
def _mad(body: Body, x: Instruction) -> str:
    if x.is_float:
        a, b, c = (body.flushed(x, operand) for operand in x.operands[1:4])
        function = {"f32": "fmaf", "f64": "fma"}.get(x.type)
        value = f"{function}({a},{b},{c})" if function else f"(float)((double){a}*{b}+{c})"
        return body.set_real(x, f"fmaxf({value},0.0f)" if "relu" in x.mods else value)
    nbits = x.nbits * (2 if "wide" in x.mods else 1)
    c, product, addend = UNSIGNED[nbits], body.product(x), body.bits(x.operands[3], nbits)
    if x.op == "mad" and "cc" not in x.mods:
        return body.set(x, f"({c})(({c})({product}) + ({c}){addend})")
    carried = "+cc" if x.op == "madc" else ""
    code = f"{WIDE} r_=({WIDE})({c})({product})+({c}){addend}{carried}; "
    code += f"{plain(x.operands[0])}=({c})r_;"
    return f"{code} cc=(uint32_t)(r_>>{nbits})&1;" if "cc" in x.mods else code


@writes("div", "rem")
def _div(body: Body, x: Instruction) -> str:
    if x.is_float:
        a, b = (body.flushed(x, operand) for operand in x.operands[1:3])
        return body.set_real(x, f"{a} / {b}")
    a, b = (body.integer(operand, x.type) for operand in x.operands[1:3])
    return body.set(x, f"({x.c})emu_{x.op}({a},{b})")


@writes("abs", "neg")
def _abs(body: Body, x: Instruction) -> str:
    is_neg = x.op == "neg"
    if x.is_float and x.nbits == 16:
        change = "^ 0x8000u" if is_neg else "& 0x7fffu"
        return body.set(x, f"(uint16_t)({body.bits(x.operands[1], 16)} {change})")
    if x.is_float:
        value = body.flushed(x, x.operands[1])
        function = "fabs" if x.type == "f64" else "fabsf"
        return body.set_real(x, f"-({value})" if is_neg else f"{function}({value})")
    v, c = body.integer(x.operands[1], x.type), x.c
    return body.set(x, f"({c})(-({c}){v})" if is_neg else f"({c})({v}<0?-({c}){v}:({c}){v})")


@writes("min", "max")
def _min(body: Body, x: Instruction) -> str:
    if x.is_float:
        if "xorsign" in x.mods:
            raise NotEmulated(x.text)
        first, *rest = (body.flushed(x, operand) for operand in x.operands[1:])
        for other in rest:
            first = f"emu_{x.op}({first},{other},{int('NaN' in x.mods)})"
        return body.set_real(x, first)
    a, b = (body.integer(operand, x.type) for operand in x.operands[1:3])
    return body.set(x, f"({x.c})({a} {'<' if x.op == 'min' else '>'} {b} ? {a} : {b})")


@writes("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def _function(body: Body, x: Instruction) -> str:
    v = body.flushed(x, x.operands[1])
    f, one = ("", "1.") if x.type == "f64" else ("f", "1.f")
    name = {"ex2": "exp2", "lg2": "log2"}.get(x.op, x.op)
    values = {"rcp": f"{one}/({v})", "rsqrt": f"{one}/sqrt{f}({v})"}
    value = values.get(x.op, f"{name}{f}({v})")
    if x.type == "f64" and x.op in values and {"approx", "ftz"} <= set(x.mods):
        value = f"emu_hi({value})"  # some 20 bits, as the hardware gives; software refines them
    return body.set_real(x, value)


@writes("copysign")
def _copysign(body: Body, x: Instruction) -> str:
    sign, size = (body.flushed(x, operand) for operand in x.operands[1:3])
    function = "copysign" if x.type == "f64" else "copysignf"
    return body.set(x, packed(f"{function}({size},{sign})", x.type))


@writes("sad")
def _sad(body: Body, x: Instruction) -> str:
    a, b = (body.integer(operand, x.type) for operand in x.operands[1:3])
    return body.set(x, f"({x.c})(emu_absdiff({a},{b})+{body.bits(x.operands[3], x.nbits)})")


# ---- bits ----------------------------------------------------------------------------------------


@writes("and", "or", "xor")
def _logic(body: Body, x: Instruction) -> str:
    a, b = (body.bits(operand, x.nbits) for operand in x.operands[1:3])
    if x.type == "pred":
        return body.set(x, f"(bool)({a} {LOGIC[x.op]} {b})")
    return body.set(x, f"({x.c})(({x.c}){a} {LOGIC[x.op]} ({x.c}){b})")


@writes("not")
def _not(body: Body, x: Instruction) -> str:
    value = body.bits(x.operands[1], x.nbits)
    return body.set(x, f"!{value}" if x.type == "pred" else f"({x.c})~({value})")


@writes("cnot")
def _cnot(body: Body, x: Instruction) -> str:
    return body.set(x, f"({x.c})(({body.bits(x.operands[1], x.nbits)})==0)")


@writes("shl", "shr")
def _shift(body: Body, x: Instruction) -> str:
    n, c, w = f"(uint32_t)({body.bits(x.operands[2], 32)})", x.c, x.nbits
    if x.op == "shr" and x.is_signed:
        value = body.integer(x.operands[1], x.type)
        return body.set(x, f"({c})({value} >> ({n}>={w}?{w - 1}:{n}))")
    value = f"({c}){body.bits(x.operands[1], w)}"
    if x.op == "shl":
        return body.set(x, f"({c})({n}>={w}?0:({c})({value} << ({n}&{w - 1})))")
    return body.set(x, f"({c})({n}>={w}?0:({value} >> ({n}&{w - 1})))")


@writes("shf")
def _shf(body: Body, x: Instruction) -> str:
    low, high, n = (body.bits(operand, 32) for operand in x.operands[1:4])
    n = f"({n}&31u)" if "wrap" in x.mods else f"({n}>32u?32u:{n})"
    whole = f"(((uint64_t){high}<<32)|{low})"
    if "l" in x.mods:
        return body.set(x, f"(uint32_t)(({whole} << {n})>>32)")
    return body.set(x, f"(uint32_t)({whole} >> {n})")


@writes("prmt")
def _prmt(body: Body, x: Instruction) -> str:
    if {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"} & set(x.mods):
        raise NotEmulated(x.text)
    values = [body.bits(operand, 32) for operand in x.operands[1:4]]
    return body.set(x, f"emu_prmt({','.join(values)})")


@writes("bfe")
def _bfe(body: Body, x: Instruction) -> str:
    value, sign = body.bits(x.operands[1], x.nbits), "s" if x.is_signed else "u"
    at, count = (body.bits(operand, 32) for operand in x.operands[2:4])
    return body.set(x, f"({x.c})emu_bfe{x.nbits}{sign}({value},{at},{count})")


@writes("bfi")
def _bfi(body: Body, x: Instruction) -> str:
    values = [body.bits(operand, x.nbits) for operand in x.operands[1:3]]
    values += [body.bits(operand, 32) for operand in x.operands[3:5]]
    return body.set(x, f"emu_bfi{x.nbits}({','.join(values)})")


@writes("bfind")
def _bfind(body: Body, x: Instruction) -> str:
    bits = body.bits(x.operands[1], x.nbits)
    v = f"(uint64_t)({x.c})({bits})"
    if x.is_signed:
        v = f"(uint64_t)({x.c})(({SIGNED[x.nbits]})({bits})<0?~({bits}):({bits}))"
    last = f"63-__builtin_clzll({v})"
    if "shiftamt" in x.mods:
        last = f"{x.nbits - 1}-({last})"
    return body.set(x, f"(uint32_t)({v}?{last}:0xffffffffu)")


@writes("clz")
def _clz(body: Body, x: Instruction) -> str:
    v, suffix = body.bits(x.operands[1], x.nbits), "ll" if x.nbits == 64 else ""
    return body.set(x, f"(uint32_t)(({v})?__builtin_clz{suffix}({v}):{x.nbits})")


@writes("popc")
def _popc(body: Body, x: Instruction) -> str:
    value = f"(uint64_t)({x.c})({body.bits(x.operands[1], x.nbits)})"
    return body.set(x, f"(uint32_t)__builtin_popcountll({value})")


@writes("brev")
def _brev(body: Body, x: Instruction) -> str:
    return body.set(x, f"emu_brev{x.nbits}({body.bits(x.operands[1], x.nbits)})")


@writes("lop3")
def _lop3(body: Body, x: Instruction) -> str:
    values = [body.bits(operand, 32) for operand in x.operands[1:5]]
    return body.set(x, f"emu_lop3({','.join(values)})")


# ---- comparisons and conversions -----------------------------------------------------------------


@writes("setp", "set")
def _setp(body: Body, x: Instruction) -> str:
    is_true = _comparison(body, x)
    joined = next((TRUTH[m] for m in x.mods[1:] if m in TRUTH), None)
    other = body.bits(x.operands[3], 1) if joined else ""
    if x.op == "set":
        type_ = x.types[0]
        whole = f"({is_true} {joined} {other})" if joined else is_true
        one = ONES.get(type_) or f"({c_unsigned(type_)})~0ull"
        return body.set(x, f"({whole}?{one}:0u)")
    to, *complement = x.operands[0].split("|")
    code = f"bool e_={is_true}; " + (f"bool c_={other}; " if joined else "")
    if to != "_":
        code += f"{plain(to)}=" + (f"(e_ {joined} c_);" if joined else "e_;")
    if complement and complement[0] != "_":
        code += f" {plain(complement[0])}=" + (f"(!e_ {joined} c_);" if joined else "!e_;")
    return code


def _comparison(body: Body, x: Instruction) -> str:
    if x.type in PAIRS:
        raise NotEmulated(x.text)
    if x.is_float:
        a, b = (body.flushed(x, operand) for operand in x.operands[1:3])
    elif x.type == "pred":
        a, b = (body.bits(operand, 1) for operand in x.operands[1:3])
    else:
        a, b = (body.integer(operand, x.type) for operand in x.operands[1:3])
    kind = x.mods[0]
    if kind == "ne" and x.is_float:
        return f"(!std::isnan({a}) && !std::isnan({b}) && {a} != {b})"
    if kind in COMPARISONS:
        return f"({a} {COMPARISONS[kind]} {b})"
    if kind in UNORDERED:
        return f"(std::isnan({a}) || std::isnan({b}) || {a} {COMPARISONS[kind[:2]]} {b})"
    if kind == "num":
        return f"(!std::isnan({a}) && !std::isnan({b}))"
    if kind == "nan":
        return f"(std::isnan({a}) || std::isnan({b}))"
    raise NotEmulated(x.text)


@writes("selp")
def _selp(body: Body, x: Instruction) -> str:
    a, b = (body.bits(operand, x.nbits) for operand in x.operands[1:3])
    return body.set(x, f"({x.c})({body.bits(x.operands[3], 1)} ? ({x.c}){a} : ({x.c}){b})")


@writes("slct")
def _slct(body: Body, x: Instruction) -> str:
    result, decides = x.types
    a, b = (body.bits(operand, NBITS[result]) for operand in x.operands[1:3])
    read = body.real if decides == "f32" else body.integer
    return body.set(x, f"({read(x.operands[3], decides)} >= 0 ? {a} : {b})")


@writes("testp")
def _testp(body: Body, x: Instruction) -> str:
    return body.set(x, CLASSES[x.mods[0]].format(body.real(x.operands[1], x.type)))


@writes("cvt")
def _cvt(body: Body, x: Instruction) -> str:
    to, source = x.types[:2]
    if to in PAIRS:
        k = PAIRS[to]
        high, low = (f"(uint32_t)f2{k}({body.real(o, 'f32')})" for o in x.operands[1:3])
        return f"{plain(x.operands[0])} = ({high}<<16) | {low};"
    rounding = next((m for m in x.mods if m in ROUNDED or m in DIRECTIONS), "")
    if source not in FLOATS:
        return _from_integer(body, x, to, source, rounding)
    value = body.real(x.operands[1], source)
    if "ftz" in x.mods and source == "f32":
        value = f"fz({value})"
    if to in FLOATS:
        return _between_floats(body, x, value, rounding)
    function = ROUNDED.get(rounding, "trunc")
    wide = value if source == "f64" else f"(double){value}"
    c = UNSIGNED[max(NBITS[to], 8)]
    return body.set(x, f"({c})emu_f2i<{c_type(to)}>({function}({wide}))")


def _from_integer(body: Body, x: Instruction, to: str, source: str, rounding: str) -> str:
    value = body.integer(x.operands[1], source)
    if to == "f64":
        return body.set(x, packed(f"(double)({value})", to))
    if to in FLOATS:
        is_directed = to == "f32" and rounding in DIRECTIONS
        real = f"i2f_{rounding}({value})" if is_directed else f"(float)({value})"
        return body.set(x, packed(real, to))
    if "sat" in x.mods:
        return body.set(x, f"emu_isat<{c_type(to)}>({value})")
    return body.set(x, f"({c_type(to)})({value})")


def _between_floats(body: Body, x: Instruction, value: str, rounding: str) -> str:
    to, source = x.types[:2]
    if rounding in ROUNDED:
        value = f"{ROUNDED[rounding]}{'' if source == 'f64' else 'f'}({value})"
    if source == "f64" and NBITS[to] == 16:
        value = f"d2near_{to}({value})"
    if source == "f64" and to == "f32":
        value = f"d2f_{rounding}({value})" if rounding in DIRECTIONS else f"(float)({value})"
    if "sat" in x.mods:
        value = f"sat1({value})"
    if source == "f32" and NBITS[to] == 16 and rounding == "rz":
        return body.set(x, f"{BITS_OF_VALUE[to]}_rz({value})")
    if source == "f32" and to == "f64":
        value = f"(double)({value})"
    if "ftz" in x.mods and to == "f32":
        value = f"fz({value})"
    return body.set(x, packed(value, to))


# ---- control -------------------------------------------------------------------------------------


@writes("bra")
def _bra(body: Body, x: Instruction) -> str:
    return f"goto L_{plain(x.operands[0])};"


@writes("brx")
def _brx(body: Body, x: Instruction) -> str:
    labels = body.targets[x.operands[1]]
    cases = [f"case {k}: goto L_{label};" for k, label in enumerate(labels)]
    return f"switch({body.bits(x.operands[0], 32)}){{{''.join(cases)}}}"


@writes("call")
def _call(body: Body, x: Instruction) -> str:
    match = ptx.found(_CALL, x.text.split(None, 1)[1].strip())
    if match[2].startswith("%"):
        raise NotEmulated(x.text)
    args = ptx.split(match[1] or "") + ptx.split(match[3] or "")
    return f"f_{plain(match[2])}({', '.join(['t', *map(plain, args)])});"


@writes("ret")
def _ret(body: Body, x: Instruction) -> str:
    return "return;"


@writes("exit")
def _exit(body: Body, x: Instruction) -> str:
    return "emu_exit(t); return;"


@writes("trap")
def _trap(body: Body, x: Instruction) -> str:
    return 'emu_trap("trap");'


@writes("membar", "fence", "nanosleep", "prefetch", "prefetchu", "discard", "applypriority")
@writes("griddepcontrol", "brkpt")
def _nothing(body: Body, x: Instruction) -> str:
    """Threads take turns in one memory, so there is nothing to do."""
    return ";"


@writes("createpolicy")
def _createpolicy(body: Body, x: Instruction) -> str:
    return body.set(x, "0")


# ---- threads that meet ---------------------------------------------------------------------------


@writes("bar", "barrier")
def _bar(body: Body, x: Instruction) -> str:
    body.syncs = True
    if "warp" in x.mods:
        return f"emu_warp_sync(t,{body.bits(x.operands[0], 32)});"
    if "red" in x.mods:
        kinds = ("popc", "and", "or")
        kind, is_set = kinds.index(x.one_of(*kinds)), body.bits(x.operands[-1], 1)
        result = f"emu_bar_red(t,{body.bits(x.operands[1], 32)},{is_set},{kind})"
        return f"uint32_t r_={result}; {plain(x.operands[0])} = r_;"
    if "arrive" in x.mods:
        raise NotEmulated(x.text)
    count = body.bits(x.operands[1], 32) if len(x.operands) > 1 else "0u"
    return f"emu_bar(t,{body.bits(x.operands[0], 32)},{count});"


@writes("shfl")
def _shfl(body: Body, x: Instruction) -> str:
    body.syncs = True
    modes = ("up", "down", "bfly", "idx")
    to, *is_inside = x.operands[0].split("|")
    values = ",".join(body.bits(operand, 32) for operand in x.operands[1:5])
    call = f"emu_shfl(t,{modes.index(x.one_of(*modes))},{values},&p_)"
    code = f"bool p_; uint32_t v_={call}; {plain(to)}=v_;"
    if is_inside and is_inside[0] != "_":
        code += f" {plain(is_inside[0])}=p_;"
    return code


@writes("vote")
def _vote(body: Body, x: Instruction) -> str:
    body.syncs = True
    kinds = ("all", "any", "uni", "ballot")
    values = f"{body.bits(x.operands[1], 1)},{body.bits(x.operands[2], 32)}"
    call = f"emu_vote(t,{kinds.index(x.one_of(*kinds))},{values})"
    return f"uint32_t v_={call}; {plain(x.operands[0])}=v_;"


@writes("match")
def _match(body: Body, x: Instruction) -> str:
    body.syncs = True
    to, *is_all = x.operands[0].split("|")
    values = f"(uint64_t){body.bits(x.operands[1], x.nbits)},{body.bits(x.operands[2], 32)}"
    call = f"emu_match(t,{int('all' in x.mods)},{values},&p_)"
    code = f"bool p_; uint32_t v_={call}; {plain(to)}=v_;"
    return code + (f" {plain(is_all[0])}=p_;" if is_all else "")


@writes("redux")
def _redux(body: Body, x: Instruction) -> str:
    body.syncs = True
    kind = x.one_of("add", "min", "max", *LOGIC)
    values = ",".join(body.bits(operand, 32) for operand in x.operands[1:3])
    call = f'emu_redux(t,"{kind}",{int(x.type == "s32")},{values})'
    return f"uint32_t v_={call}; {plain(x.operands[0])}=v_;"


@writes("activemask")
def _activemask(body: Body, x: Instruction) -> str:
    return body.set(x, f"(1u<<{SHORT_LANE})")


@writes("elect")
def _elect(body: Body, x: Instruction) -> str:
    return f"{plain(x.operands[0].split('|')[1])}=((t->lin&31)==0);"
