"""The PTX that decodes packed weights, executed here instruction by instruction on every byte."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.gluon_decode import _DECODE
from deepinfer.kernels.gemm.hopper_weights import prepare_weight
from deepinfer.kernels.gemm.weight_tiles import _E2M1_TO_E4M3, _E4M3_DIVIDE

_WORD = 0xFFFFFFFF


def _prmt(a: int, b: int, selector: int) -> int:
    source = (a | b << 32).to_bytes(8, "little")
    result = bytearray()
    for place in range(4):
        nibble = selector >> 4 * place & 15
        byte = source[nibble & 7]
        result.append((255 if byte & 128 else 0) if nibble & 8 else byte)
    return int.from_bytes(result, "little")


def _lop3(a: int, b: int, c: int, table: int) -> int:
    """Bitwise function of three words: the bit of ``table`` that their bits select."""
    places = ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1) for i in range(32))
    return sum((table >> place & 1) << i for i, place in enumerate(places))


_OPS: dict[str, Callable[..., int]] = {
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "add.u32": lambda a, b: a + b,
    "sub.u32": lambda a, b: a - b,
    "shl.b32": lambda a, b: a << b,
    "shr.u32": lambda a, b: a >> b,
    "prmt.b32": _prmt,
    "lop3.b32": _lop3,
}


def _run(ptx: str, inputs: dict[str, int]) -> dict[str, int]:
    registers = dict(inputs)
    for line in ptx.strip("{}\n").splitlines():
        if line.startswith(".reg"):
            continue
        op, target, *operands = re.findall(r"[^\s,;]+", line)
        values = [registers[x] if x in registers else int(x, 0) for x in operands]
        registers[target] = _OPS[op](*values) & _WORD
    return registers


def _numbers(word: int) -> list[float]:
    codes = torch.tensor(list(word.to_bytes(4, "little")), dtype=torch.uint8)
    return codes.view(torch.float8_e4m3fn).float().tolist()


def test_fp4_pairs_become_e4m3() -> None:
    """Each nibble is 2 ** (q - 6) of its value, whatever the bytes beside it; exact from q = 1."""
    levels = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = levels + [-level for level in levels]
    for byte in range(256):
        others = [(byte * 7 + 91 * place) % 256 for place in range(4)]
        for q in range(1, 13):
            for place in range(4):
                packed = [*others[:place], byte, *others[place + 1 :]]
                raised = [8 * (1 + (q + 5 * other) % 12) for other in range(4)]
                raised[place] = 8 * q
                out = _run(
                    _E2M1_TO_E4M3.value,
                    {
                        "$2": int.from_bytes(packed, "little"),
                        "$3": int.from_bytes(raised, "little"),
                    },
                )
                assert _numbers(out["$0"])[place] == values[byte & 15] * 2.0 ** (q - 6)
                assert _numbers(out["$1"])[place] == values[byte >> 4] * 2.0 ** (q - 6)


def test_eight_codes_become_e4m3() -> None:
    """Gluon's decode of prepared words: every pair of codes at every step."""
    for d in range(12):
        exponents = torch.tensor([[120 + d] + [131] * 7], dtype=torch.uint8).expand(64, 8)
        byte = torch.arange(64 * 16).view(64, 16) % 256
        values = torch.zeros(64, 128, dtype=torch.uint8)
        values[:, :16] = byte
        weight = Weight(values.view(torch.int8), exponents.contiguous().view(torch.float8_e8m0fnu))
        prepared = prepare_weight(weight)
        assert prepared is not None
        low, high = (0x14100800 + d * 0x08080800) & _WORD, (0x24201C18 + d * 0x08080808) & _WORD
        dense = weight.dense.float() / float(prepared.row_scales[0])
        for row in range(16):
            for i in range(4):
                word = int(prepared.values[row, i]) & _WORD
                out = _run(_DECODE.value, {"$2": word, "$6": low, "$10": high})
                assert _numbers(out["$0"]) == dense[row, 8 * i : 8 * i + 4].tolist()
                assert _numbers(out["$1"]) == dense[row, 8 * i + 4 : 8 * i + 8].tolist()


def test_e4m3_is_divided_by_a_power_of_two() -> None:
    """Exact where the result is a normal number, within its smallest step below."""
    for code in range(256):
        if code & 127 == 127:
            continue
        for d in range(16):
            for place in range(4):
                codes, drops = [0x7E, 0x81, 0x08, 0xFE], [8 * 15, 0, 8, 8 * 3]
                codes[place], drops[place] = code, 8 * d
                out = _run(
                    _E4M3_DIVIDE.value,
                    {"$1": int.from_bytes(codes, "little"), "$2": int.from_bytes(drops, "little")},
                )
                sign = -1.0 if code & 128 else 1.0
                exact = sign * _numbers(code & 127)[0] / 2**d
                actual = _numbers(out["$0"])[place]
                if abs(exact) >= 2.0**-6 or d == 0:
                    assert actual == exact
                else:
                    assert abs(actual - exact) <= 2.0**-7
