"""Memory does not grow with the number of rows, wherever they go."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deepinfer_cli.input.reader import open_reader

_FOLDER = Path(__file__).parent
# The peak of this program alone: that of getrusage begins with what its parent had.
_PROGRAM = f"""
import re, sys
from collections import deque
sys.path.insert(0, {str(_FOLDER)!r})
from fake_engine import FakeEngine
from deepinfer_cli.main import main

class Forgetful(FakeEngine):
    def __init__(self, settings):
        super().__init__(settings)
        self.rows = deque(maxlen=1)

code = main(sys.argv[1:], Forgetful)
peak = re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]
print("peak", peak, file=sys.stderr)
sys.exit(code)
"""


def _lines(count: int) -> Iterator[bytes]:
    """Every twentieth row fails, every thirtieth is no JSON."""
    for index in range(count):
        if index % 30 == 7:
            yield b"no row %d\n" % index
        else:
            fail = b', "fail": "too_long"' if index % 20 == 3 else b""
            yield b'{"id": "row-%d", "prompt": "prompt number %d"%s}\n' % (index, index, fail)


def _peak_mib(count: int, *arguments: str) -> float:
    """Of a whole run over ``count`` rows."""
    source = Path(f"{count}.jsonl")
    with source.open("wb") as file:
        file.writelines(_lines(count))
    command = [sys.executable, "-c", _PROGRAM, "run", str(source), "--quiet", *arguments]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3, done.stderr
    return int(done.stderr.split("peak ")[1]) / 1024


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("-o", "out.jsonl"), id="file"),
        pytest.param(("-o", "-"), id="stdout", marks=pytest.mark.slow),
        pytest.param(
            ("-o", "out.jsonl", "--order", "completion"), id="completion", marks=pytest.mark.slow
        ),
    ],
)
def test_eight_times_the_rows_take_the_same_memory(
    in_tmp: Path, arguments: tuple[str, ...]
) -> None:
    few = _peak_mib(1_000, *arguments, "--force")
    many = _peak_mib(8_000, *arguments, "--force")
    # 7,000 rows in a list, as they are read, would be 5 MiB.
    assert many < few + 3


@pytest.mark.slow
@pytest.mark.usefixtures("in_tmp")
def test_parquet_keeps_one_group_of_rows() -> None:
    few = _peak_mib(20_000, "-o", "few.parquet")
    many = _peak_mib(60_000, "-o", "many.parquet")
    assert many < few + 8


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.usefixtures("in_tmp")
def test_a_million_rows_take_the_memory_of_ten_thousand() -> None:
    few = _peak_mib(10_000, "-o", "few.jsonl")
    many = _peak_mib(1_000_000, "-o", "many.jsonl")
    assert many < few + 8
    with Path("many.jsonl").open("rb") as results:
        num_results = sum(1 for _ in results)
    with Path("many.jsonl.errors.jsonl").open("rb") as errors:
        assert num_results + sum(1 for _ in errors) == 1_000_000


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_row_group_is_never_read_whole(in_tmp: Path, compression: str) -> None:
    chance = random.Random(0)
    texts = [chance.randbytes(500).hex() for _ in range(20_000)]
    pq.write_table(
        pa.table({"prompt": texts}), "in.parquet", row_group_size=len(texts),
        compression=compression, use_dictionary=False,
    )  # fmt: skip
    before, peak = pa.total_allocated_bytes(), 0
    for index, row in enumerate(open_reader("in.parquet").rows):
        assert row.fields == {"prompt": texts[index]}
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert index + 1 == len(texts) and peak < 6 * 2**20
