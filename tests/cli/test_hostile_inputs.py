"""Hostile inputs (thousands with ``-m slow``): the right exit code, and counts that add up."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deepinfer.errors import DeepInferError
from deepinfer_cli.main import main
from deepinfer_cli.run.verb import RunRequest, run
from deepinfer_cli.settings.layers import resolve


@pytest.mark.parametrize("seed, count", [(1, 200), pytest.param(3, 2_500, marks=pytest.mark.slow)])
def test_every_hostile_input_ends_as_it_should(
    in_tmp: Path,
    fake_engine: type[Any],
    hostile_inputs: Any,
    seed: int,
    count: int,
) -> None:
    codes: Counter[tuple[str, int]] = Counter()
    for number, case in enumerate(hostile_inputs.cases(seed, count)):
        Path(case.file).write_bytes(case.data)
        try:
            codes[case.family, _check(case, fake_engine)] += 1
        except BaseException as error:
            error.add_note(f"case {number}: {case.family} {case.options} {case.data[:300]!r}")
            raise
        Path(case.file).unlink()
    # The corpus is what it says: each family met, good and bad ends both.
    families = {family for family, _ in codes}
    assert len(families) == 15
    assert sum(n for (_, code), n in codes.items() if code == 0) > count // 20
    assert sum(n for (_, code), n in codes.items() if code == 3) > count // 4
    assert sum(n for (_, code), n in codes.items() if code == 4) > count // 10
    assert codes.total() == count


def _check(case: Any, fake_engine: type[Any]) -> int:
    """Run one case and compare what is left with what must be; its exit code."""
    flags = {"max_row_bytes": case.options[1]} if case.options else {}
    request = RunRequest(source=case.file, output="out.jsonl", quiet=True)
    try:
        code = run(request, resolve(flags), fake_engine)
    except DeepInferError as error:
        code = error.exit_code
        assert code == 4 and str(error).strip(), (code, error)
    left = _take_what_is_left()
    if code == 4:
        assert case.is_damaged is not False
        assert not left.keys() & {"out.jsonl", "out.jsonl.errors.jsonl", "out.jsonl.report.json"}
        return code
    assert case.is_damaged is not True
    results = _lines(left["out.jsonl"])
    errors = _lines(left.get("out.jsonl.errors.jsonl", b""))
    rows = json.loads(left["out.jsonl.report.json"])["rows"]
    assert rows["input"] == len(results) + len(errors)
    assert (rows["results"], rows["errors"]) == (len(results), len(errors))
    assert code == (3 if errors else 0)
    places = [row["row"] for row in errors]
    assert places == sorted(set(places)) and all(0 <= p < rows["input"] for p in places)
    assert all(row["error"]["kind"] and row["error"]["message"] for row in errors)
    if case.rows is not None:
        assert rows["input"] == case.rows
    if case.errors is not None:
        assert len(errors) == case.errors
    return code


def _take_what_is_left() -> dict[str, bytes]:
    """The files of the run, by name, which are removed."""
    left = {}
    for path in Path().rglob("out.jsonl*"):
        if path.is_file():
            left[str(path)] = path.read_bytes()
    for path in sorted(Path().rglob("out.jsonl*/*"), reverse=True):
        path.unlink()
    for path in Path().glob("out.jsonl*"):
        path.rmdir() if path.is_dir() else path.unlink()
    return left


def _lines(data: bytes) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in data.split(b"\n") if line]
    assert all(isinstance(row, dict) for row in rows)
    return rows


def test_the_program_says_one_line_about_an_unusable_input(
    in_tmp: Path,
    fake_engine: type[Any],
    hostile_inputs: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    damaged = [c for c in hostile_inputs.cases(seed=2, count=120) if c.is_damaged]
    assert len(damaged) > 20
    for case in damaged:
        Path(case.file).write_bytes(case.data)
        assert main(["run", case.file, "-o", "out.jsonl", "-q"], fake_engine) == 4
        out, err = capfd.readouterr()
        assert out == "" and err.count("\n") == 1 and case.file in err, err
        assert err.startswith("deepinfer: ") and "Traceback" not in err
        _take_what_is_left()
