"""Inputs as bad as they come, made from a seed, each with what must become of it.

The expectations are computed here, by the plainest means, and not by the code under test.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard


@dataclass(frozen=True)
class Case:
    """``rows`` and ``errors`` are None where only adding up is asked for; then also ``is_damaged``
    None says that the damage may or may not be noticed."""

    family: str
    file: str
    data: bytes
    rows: int | None = None
    errors: int | None = None
    is_damaged: bool | None = False
    options: tuple[str, ...] = ()


def cases(seed: int, count: int) -> Iterator[Case]:
    """``count`` cases, all families in turn."""
    chance = random.Random(seed)
    for number in range(count):
        yield _FAMILIES[number % len(_FAMILIES)](chance)


# JSON lines ----------------------------------------------------------------------------------


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("duplicate")
    return dict(pairs)


def _is_result(line: bytes) -> bool:
    """Whether the fake engine has an answer for a line."""
    try:
        row = json.loads(
            line.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_duplicates
        )
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and isinstance(row.get("prompt"), str) and "fail" not in row


def _expected(plain: bytes) -> tuple[int, int]:
    """How many rows, and how many of them are errors."""
    lines = plain.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    lines = [line for line in lines if line.strip()]
    return len(lines), sum(not _is_result(line) for line in lines)


_ODD_TEXT = (
    "", "a", "é", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x00", "\ufeff",
    "\U0001f600", "</think>", "<｜User｜>", "\ud800", "\\", '"', "\r", "\n", "\t", "%s",
    "../../etc", "x" * 3_000,
)  # fmt: skip


def _text(chance: random.Random) -> str:
    return "".join(chance.choice(_ODD_TEXT) for _ in range(chance.randrange(4)))


def _value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(9 if depth < 3 else 6)
    if kind == 6:
        return [_value(chance, depth + 1) for _ in range(chance.randrange(3))]
    if kind >= 7:
        return {_text(chance): _value(chance, depth + 1) for _ in range(chance.randrange(3))}
    return (None, True, chance.randrange(-9, 10**30), 1.5e300, _text(chance), chance.random())[kind]


_FIELDS = ("prompt", "prompt", "prompt", "id", "custom_id", "url", "body", "messages", "max_tokens",
           "n", "stop", "seed", "input", "line", "extra", "fail", "raw", "tools")  # fmt: skip


def _object(chance: random.Random) -> bytes:
    row = {chance.choice(_FIELDS): _value(chance) for _ in range(chance.randrange(1, 6))}
    if "fail" in row:
        row["fail"] = "device"
    if chance.random() < 0.6:
        row["prompt"] = _text(chance) or "p"
    return json.dumps(row, ensure_ascii=chance.random() < 0.7).encode("utf-8", "surrogatepass")


def _odd_line(chance: random.Random) -> bytes:
    return chance.choice(
        (
            b"", b"   ", b"\r", b"\t\r", b"null", b"[]", b"{}", b"0", b'"x"', b"{", b"}", b"nan",
            b'{"prompt": NaN}', b'{"prompt": "a", "x": Infinity}', b'{"prompt": "a", "x": 1e999}',
            b'{"prompt": "a",}', b"{'prompt': 'a'}", b'{"prompt": "a"} {"prompt": "b"}',
            b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "a", "x": {"y": 1, "y": 2}}',
            b'\xef\xbb\xbf{"prompt": "a"}', b'{"prompt": "\xff"}', b'{"prompt": "\xed\xa0\x80"}',
            b'{"prompt": "a\x00b"}', b'{"prompt": "a\\u0000b"}', b'{"prompt": "\\ud83d"}',
            b'{"prompt": "\\x"}', b"//", b"# comment", b"<html>", b"\x00" * 50, b"\x7fELF",
            b'{"prompt": ' + b"[" * 2_000 + b"]" * 2_000 + b"}", b"[" * 100_000,
            b'{"prompt": "p", "x": ' + b"9" * 5_000 + b"}", b'{"prompt": "p", "x": -0.0}',
            b'{"prompt": "' + b"long " * 2_000 + b'"}', b' {"prompt": "a"} ', b'{"prompt":"a"}\r',
            b'\x0c{"prompt": "a"}', b'{"prompt": "a"}\x1a', b'{"prompt": "a"}\x00',
        )
    )  # fmt: skip


def _mutated(chance: random.Random, line: bytes) -> bytes:
    data = bytearray(line)
    for _ in range(chance.randrange(1, 4)):
        if not data:
            break
        place = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                del data[place : place + chance.randrange(1, 4)]
            case 2:
                data[place:place] = bytes([chance.randrange(256)])
            case _:
                data[place:place] = data[place : place + 8]
    return bytes(data)


def _lines(chance: random.Random) -> bytes:
    lines = []
    for _ in range(chance.randrange(6)):
        line = _odd_line(chance) if chance.random() < 0.4 else _object(chance)
        if chance.random() < 0.3:
            line = _mutated(chance, line)
        lines.append(line)
    ending = chance.choice((b"\n", b"\r\n"))
    start = chance.choice((b"", b"", b"", b"\xef\xbb\xbf", b"\n\n"))
    return start + ending.join(lines) + chance.choice((b"", ending, b"\n\n\n"))


def jsonl(chance: random.Random) -> Case:
    data = _lines(chance)
    if _looks_compressed(data):
        return jsonl(chance)
    return Case("jsonl", chance.choice(("in.jsonl", "in.txt", "in")), data, *_expected(data))


def long_lines(chance: random.Random) -> Case:
    limit = chance.randrange(20, 60)
    lines = [
        b'{"prompt": "%s"}' % (b"x" * chance.randrange(2 * limit))
        for _ in range(chance.randrange(1, 6))
    ]
    errors = sum(len(line) > limit for line in lines)
    return Case(
        "long_lines", "in.jsonl", b"\n".join(lines) + chance.choice((b"", b"\n")), len(lines),
        errors, options=("--max-row-bytes", str(limit)),
    )  # fmt: skip


def encoded(chance: random.Random) -> Case:
    """Text in an encoding that is not UTF-8, or only nearly."""
    encodings = ("utf-16", "utf-16-be", "utf-32", "latin-1", "cp1252", "utf-7", "cp037")
    text = "".join(f'{{"prompt": "{chance.choice(("ab", "é", "ü€", "~"))}"}}\n' for _ in range(3))
    data = text.encode(chance.choice(encodings), "replace")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # said once, not of every line
        return Case("encoded", "in.jsonl", data, is_damaged=True)
    return Case("encoded", "in.jsonl", data, *_expected(data))


def fed_back(chance: random.Random) -> Case:
    """Lines like those of an error file."""
    lines = []
    for number in range(chance.randrange(1, 5)):
        row: dict[str, Any] = {"line": number, "id": str(number), "error": {"kind": "x"}}
        name = chance.choice(("input", "input_text", "input_base64", "input_start", "other"))
        row[name] = chance.choice(
            ({"prompt": "p"}, '{"prompt": "p"}', "eyJwcm9tcHQiOiAicCJ9", "%%%", None, 5, [], {})
        )
        line = json.dumps(row).encode()
        lines.append(_mutated(chance, line) if chance.random() < 0.2 else line)
    data = b"\n".join(lines)
    count = sum(bool(line.strip()) for line in data.split(b"\n"))
    return Case("fed_back", "in.jsonl", data, count)


# Compressed ----------------------------------------------------------------------------------


def _looks_compressed(data: bytes) -> bool:
    return data[:2] == b"\x1f\x8b" or data[:4] in (b"\x28\xb5\x2f\xfd", b"PAR1")


def _pack(chance: random.Random, data: bytes) -> tuple[str, bytes]:
    if chance.random() < 0.5:
        return ".gz", gzip.compress(data, mtime=0)
    return ".zst", zstandard.ZstdCompressor(write_checksum=True).compress(data)


def compressed(chance: random.Random) -> Case:
    """Whole, in several members, or compressed twice."""
    data, more = _lines(chance), _lines(chance)
    ending, packed = _pack(chance, data)
    match chance.randrange(3):
        case 0:
            return Case("compressed", "in.jsonl" + ending, packed, *_expected(data))
        case 1:
            both = packed + (gzip.compress(more) if ending == ".gz" else _zst(more))
            return Case("members", "in.bin", both, *_expected(data + more))
        case _:
            return Case("twice", "in.jsonl.gz", gzip.compress(packed), *_expected(packed))


def _zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def cut(chance: random.Random) -> Case:
    """A compressed file that ends early."""
    lines = b"".join(b'{"prompt": "%d"}\n' % chance.randrange(10**9) for _ in range(30))
    ending, packed = _pack(chance, lines)
    data = packed[: chance.randrange(len(packed))]
    if _looks_compressed(data):
        return Case("cut", "in.jsonl" + ending, data, is_damaged=True)
    return Case("cut", "in.jsonl" + ending, data, *_expected(data))


def flipped(chance: random.Random) -> Case:
    """A compressed file with flipped bits, or with something after its end."""
    ending, packed = _pack(chance, _lines(chance))
    data = bytearray(packed)
    for _ in range(chance.randrange(1, 3)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    if chance.random() < 0.3:
        data += chance.randbytes(chance.randrange(1, 20))
    return Case("flipped", "in.jsonl" + ending, bytes(data), is_damaged=None)


# Tables --------------------------------------------------------------------------------------


def table_csv(chance: random.Random) -> Case:
    columns = chance.sample(("id", "label", "é", "max_tokens", "x y"), chance.randrange(3))
    columns.insert(chance.randrange(len(columns) + 1), "prompt")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=chance.choice(("\n", "\r\n")))
    writer.writerow(columns)
    errors = 0
    rows = chance.randrange(1, 5)
    cells = ("a", "é,", '"quoted"', "two\nlines", "5", "[1]", "", "null", " ")
    for _ in range(rows):
        row = {name: chance.choice(cells) for name in columns}
        kept = list(row.values())
        if chance.random() < 0.2:
            kept.append("one too many")
            errors += 1
        else:
            errors += row["prompt"] == ""
        writer.writerow(kept)
    data = out.getvalue().encode(chance.choice(("utf-8", "utf-8-sig")))
    return Case("csv", "in.csv", data, rows, errors)


def damaged_csv(chance: random.Random) -> Case:
    case = table_csv(chance)
    return Case("damaged_csv", "in.csv", _mutated(chance, case.data), is_damaged=None)


def _column(chance: random.Random, size: int) -> tuple[Any, list[bool]]:
    """A column, and for each row whether it is text."""
    texts = [chance.choice(("a", "é", "x" * 50, None)) for _ in range(size)]
    is_text = [text is not None for text in texts]
    match chance.randrange(12):
        case 0:
            return pa.array(texts, pa.large_string()), is_text
        case 1:
            return pa.array(texts, pa.string()).dictionary_encode(), is_text
        case 2:
            end = chance.choice((b"", b"\xff"))
            octets = [None if text is None else text.encode() + end for text in texts]
            return pa.array(octets, pa.binary()), [False] * size if end else is_text
        case 3:
            return pa.array(range(size), pa.int64()), [False] * size
        case 4:
            return pa.array([float("nan")] * size, pa.float32()), [False] * size
        case 5:
            return pa.array([[text] for text in texts], pa.list_(pa.string())), [False] * size
        case 6:
            return pa.array([{"role": text} for text in texts], pa.struct({"role": pa.string()})), [
                False
            ] * size
        case 7:
            return pa.nulls(size), [False] * size
        case 8:
            return pa.array([1_700_000_000] * size, pa.timestamp("s")), [True] * size
        case 9:
            return pa.array([True] * size), [False] * size
        case _:
            return pa.array(texts, pa.string()), is_text


def _parquet(chance: random.Random) -> tuple[bytes, int, int]:
    size = chance.choice((0, 1, 2, 5, 300))
    prompts, is_text = _column(chance, size)
    columns = {"prompt": prompts}
    for name in chance.sample(("id", "extra", "messages_", "é", ""), chance.randrange(4)):
        columns[name] = _column(chance, size)[0]
    if chance.random() < 0.1:
        columns["question"] = columns.pop("prompt")
        is_text = [False] * size
    out = io.BytesIO()
    codec = chance.choice(("zstd", "snappy", "none", "gzip"))
    pq.write_table(pa.table(columns), out, row_group_size=chance.choice((1, 7, 4_096)),
                   compression=codec, use_dictionary=chance.random() < 0.5)  # fmt: skip
    return out.getvalue(), size, size - sum(is_text)


def parquet(chance: random.Random) -> Case:
    data, rows, errors = _parquet(chance)
    return Case("parquet", chance.choice(("in.parquet", "in", "in.bin")), data, rows, errors)


def cut_parquet(chance: random.Random) -> Case:
    data, _, _ = _parquet(chance)
    return Case("cut_parquet", "in.parquet", data[: chance.randrange(len(data))], is_damaged=True)


def flipped_parquet(chance: random.Random) -> Case:
    data = bytearray(_parquet(chance)[0])
    for _ in range(chance.randrange(1, 4)):
        data[chance.randrange(4, len(data))] ^= 1 << chance.randrange(8)
    return Case("flipped_parquet", "in.parquet", bytes(data), is_damaged=None)


def noise(chance: random.Random) -> Case:
    """Bytes without meaning under a name that promises some."""
    data = chance.randbytes(chance.randrange(200))
    name = chance.choice(("in.jsonl", "in.parquet", "in.csv", "in.jsonl.gz", "in.zst", "in"))
    return Case("noise", name, data, is_damaged=None)


_FAMILIES: tuple[Callable[[random.Random], Case], ...] = (
    jsonl, jsonl, jsonl, jsonl, jsonl, long_lines, encoded, fed_back, compressed, compressed, cut,
    cut, flipped, table_csv, damaged_csv, parquet, parquet, cut_parquet, flipped_parquet, noise,
)  # fmt: skip
