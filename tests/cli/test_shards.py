"""``--shard`` and ``deepinfer merge``: the parts together are the whole, or it is said why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer_cli.input.sharding import Shard

Cli = Callable[..., Any]
_ROWS = [b'{"prompt": "p%d", "id": "r%d"}' % (index, index) for index in range(23)]
_ROWS[4] = b"bad"
_ROWS[9] = b'{"prompt": "x", "fail": "too_long"}\n'  # and a blank line
_ROWS[22] = b'{"no": 1}'


def _write(rows: list[bytes]) -> None:
    Path("in.jsonl").write_bytes(b"\n".join(rows))


def _run_shards(cli: Cli, count: int, *more: str, output: str = "out.jsonl") -> None:
    for number in range(1, count + 1):
        shard = ("--shard", f"{number}/{count}")
        assert cli("run", "in.jsonl", "-o", output, *shard, *more).exit_code in (0, 3)


def _same_files(*names: str) -> bool:
    return len({Path(name).read_bytes() for name in names}) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 8, 30])
@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_merged_shards_are_the_unsharded_run(cli: Cli, count: int, ending: str) -> None:
    _write(_ROWS)
    assert cli("run", "in.jsonl", "-o", f"whole{ending}").exit_code == 3
    _run_shards(cli, count, output=f"out{ending}")
    if count == 1:
        assert Path(f"out{ending}").exists()
        return
    done = cli("merge", "-o", f"out{ending}")
    assert done.exit_code == 3 and done.out == b""
    assert f"merged {count} shards, 23 rows, 3 failed" in done.err
    assert _same_files(f"out{ending}", f"whole{ending}")
    assert _same_files(f"out{ending}.errors.jsonl", f"whole{ending}.errors.jsonl")
    merged = json.loads(Path(f"out{ending}.report.json").read_bytes())
    whole = json.loads(Path(f"whole{ending}.report.json").read_bytes())
    for name in ("rows", "errors", "kinds", "finish_reasons"):
        assert merged[name] == whole[name]
    assert not Path(f"out{ending}.partial").exists()


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_shards_in_order_of_completion_are_merged_too(cli: Cli, ending: str) -> None:
    _write(_ROWS)
    cli("run", "in.jsonl", "-o", f"whole{ending}")
    for number, order in enumerate(("completion", "input", "completion"), 1):
        shard = ("--shard", f"{number}/3", "--order", order)
        assert cli("run", "in.jsonl", "-o", f"out{ending}", *shard).exit_code in (0, 3)
    done = cli("merge", "-o", f"out{ending}")
    assert done.exit_code == 3, done.err
    assert _same_files(f"out{ending}", f"whole{ending}")
    assert _same_files(f"out{ending}.errors.jsonl", f"whole{ending}.errors.jsonl")
    report = json.loads(Path(f"out{ending}.report.json").read_bytes())
    assert report["settings"]["order"]["value"] == "input"


@given(
    rows=st.lists(
        st.sampled_from([b'{"prompt": "a"}', b"bad", b"", b'{"fail": "x"}']), max_size=30
    ),
    count=st.integers(2, 7),
    limit=st.none() | st.integers(0, 20),
)
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_rows_in_any_number_of_shards(
    cli: Cli, rows: list[bytes], count: int, limit: int | None
) -> None:
    for path in Path().iterdir():
        path.unlink()
    _write(rows)
    more = () if limit is None else ("--limit", str(limit))
    whole = cli("run", "in.jsonl", "-o", "whole.jsonl", *more)
    _run_shards(cli, count, *more)
    assert cli("merge", "-o", "out.jsonl").exit_code == whole.exit_code
    assert _same_files("out.jsonl", "whole.jsonl")


def test_rows_come_from_the_whole_file_and_keep_their_places(cli: Cli) -> None:
    _write([b'{"prompt": "p%d"}' % index for index in range(7)])
    cli("run", "in.jsonl", "-o", "out.jsonl", "--shard", "2/3")
    rows = [json.loads(line) for line in Path("out.2-of-3.jsonl").read_bytes().splitlines()]
    assert [(row["id"], row["content"], row["seed"]) for row in rows] == [
        ("2", "p1", 10), ("5", "p4", 40),
    ]  # fmt: skip
    done = cli("run", "in.jsonl", "-o", "-", "--shard", "3/3", window=2)
    assert [row["id"] for row in done.rows] == ["3", "6"]


def test_a_broken_shard_goes_on(cli: Cli) -> None:
    _write([*_ROWS, b'{"crash": 1}', b'{"prompt": "q"}'])
    broken = cli("run", "in.jsonl", "-o", "out.jsonl", "--shard", "2/2", window=2)
    assert broken.exit_code == 1
    unfinished = cli("merge", "-o", "out.jsonl")
    assert unfinished.exit_code == 4 and "out.2-of-2.jsonl is not finished" in unfinished.err
    _write([*_ROWS, b'{"prompt": "s"}', b'{"prompt": "q"}'])
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "--shard", "2/2").exit_code == 3
    cli("run", "in.jsonl", "-o", "out.jsonl", "--shard", "1/2")
    cli("run", "in.jsonl", "-o", "whole.jsonl")
    assert cli("merge", "-o", "out.jsonl").exit_code == 3
    assert _same_files("out.jsonl", "whole.jsonl")


def _copy_shard(old: str, new: str) -> None:
    for ending in ("", ".report.json", ".errors.jsonl"):
        if Path(old + ending).exists():
            shutil.copy(old + ending, new + ending)


def test_bad_shards_are_refused_with_the_reason(cli: Cli) -> None:
    _write(_ROWS)
    _run_shards(cli, 3)
    three = [f"out.{number}-of-3.jsonl" for number in (1, 2, 3)]
    _copy_shard(three[1], "copy.jsonl")
    cli("run", "in.jsonl", "-o", "hot.jsonl", "--shard", "2/3", "--temperature", "0.5")
    cli("run", "in.jsonl", "-o", "plain.jsonl")
    cli("run", "in.jsonl", "-o", "four.jsonl", "--shard", "4/4")
    Path("in.jsonl").write_bytes(b"\n".join(_ROWS[:9]))
    cli("run", "in.jsonl", "-o", "other.jsonl", "--shard", "2/3")
    _copy_shard(three[1], "cut.jsonl")
    Path("cut.jsonl").write_bytes(Path("cut.jsonl").read_bytes().split(b"\n", 1)[1])
    _copy_shard(three[1], "more.jsonl")
    Path("more.jsonl").write_bytes(Path("more.jsonl").read_bytes() * 2)
    _copy_shard(three[1], "bare.jsonl")
    Path("bare.jsonl.report.json").unlink()
    for files, reason in (
        ([three[0], three[2]], "shards are missing: 2/3; deepinfer run --shard 2/3 writes"),
        ([*three, "copy.jsonl"], "are both shard 2/3"),
        ([three[0], "hot.2-of-3.jsonl", three[2]], "temperature is 1.0 and 0.5"),
        ([three[0], "plain.jsonl", three[2]], "plain.jsonl is not a shard"),
        ([*three, "four.4-of-4.jsonl"], "of another run"),
        ([three[0], "other.2-of-3.jsonl", three[2]], "different inputs"),
        ([three[0], "cut.jsonl", three[2]], "cut.jsonl ends before row"),
        ([three[0], "more.jsonl", three[2]], "more.jsonl has more than its "),
        ([three[0], "bare.jsonl", three[2]], "there is no bare.jsonl.report.json"),
        ([three[0], "none.jsonl", three[2]], "there is no none.jsonl"),
        (["in.jsonl"], "there is no in.jsonl.report.json"),
        (["."], "is a folder"),
    ):
        done = cli("merge", *files, "-o", "out.jsonl")
        assert (done.exit_code, reason in done.err) == (4, True), done.err
        assert not Path("out.jsonl").exists() and done.err.count("\n") == 1
    assert cli("merge", *reversed(three), "-o", "out.jsonl").exit_code == 3


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"versions": {"deepinfer": "0.0.1"}}, "different versions of deepinfer"),
        ({"model_fingerprint": "0123"}, "different models"),
        ({"schema": 5}, "is not a report of this version"),
        ({"status": "stopped"}, "is stopped, not finished"),
    ],
)
def test_shards_made_by_something_else(cli: Cli, change: dict[str, Any], reason: str) -> None:
    _write(_ROWS)
    _run_shards(cli, 2)
    for number in (1, 2):
        path = Path(f"out.{number}-of-2.jsonl.report.json")
        report = json.loads(path.read_bytes()) | {"model_fingerprint": "4567"}
        path.write_text(json.dumps(report | (change if number == 2 else {})))
    done = cli("merge", "-o", "out.jsonl")
    assert done.exit_code == 4 and reason in done.err, done.err


def test_wrong_use_of_merge(cli: Cli) -> None:
    none = cli("merge", "-o", "out.jsonl")
    assert none.exit_code == 4 and "no shards of out.jsonl" in none.err
    assert cli("merge").exit_code == 2
    assert cli("merge", "-o", "out.txt").exit_code == 2
    _write(_ROWS)
    _run_shards(cli, 2)
    over = cli("merge", "-o", "out.1-of-2.jsonl", "out.1-of-2.jsonl", "out.2-of-2.jsonl", "--force")
    assert over.exit_code == 2 and "is the input" in over.err
    assert cli("merge", "-o", "out.jsonl", "--json").exit_code == 3
    again = cli("merge", "-o", "out.jsonl")
    assert again.exit_code == 2 and "--force" in again.err and "--retry" not in again.err
    assert cli("merge", "-o", "out.jsonl", "--force").exit_code == 3
    _run_shards(cli, 3)
    several = cli("merge", "-o", "out.jsonl", "--force")
    assert several.exit_code == 4 and "found shards of several runs (of 2, 3)" in several.err


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2"])
def test_impossible_shards(cli: Cli, shard: str) -> None:
    _write(_ROWS)
    done = cli("run", "in.jsonl", f"--shard={shard}")
    assert done.exit_code == 2 and f"--shard={shard}: expected I/N" in done.err


@given(total=st.integers(0, 100), count=st.integers(1, 12))
def test_shards_share_all_rows(total: int, count: int) -> None:
    shards = [Shard(number, count) for number in range(1, count + 1)]
    held = [[index for index in range(total) if shard.holds(index)] for shard in shards]
    assert [len(rows) for rows in held] == [shard.num_rows(total) for shard in shards]
    assert sorted(sum(held, [])) == list(range(total))
    output = Path("some/out.jsonl")
    assert all(Shard.of_file(output, shard.path(output)) == shard for shard in shards[: count > 1])
    assert Shard.of_file(output, output) is None


def test_parquet_shards_have_the_schema_of_a_run(cli: Cli) -> None:
    _write(_ROWS)
    cli("run", "in.jsonl", "-o", "whole.parquet", "--n", "2", "--carry", "*")
    _run_shards(cli, 2, "--n", "2", "--carry", "*", output="out.parquet")
    assert cli("merge", "-o", "out.parquet").exit_code == 3
    assert pq.read_table("out.parquet").equals(pq.read_table("whole.parquet"))


def test_a_plan_like_merged_shards_names_what_to_give(cli: Cli) -> None:
    _write(_ROWS)
    _run_shards(cli, 2)
    cli("merge", "-o", "out.jsonl")
    done = cli("plan", "in.jsonl", "--like", "out.jsonl")
    assert done.exit_code == 2 and "it was merged: give one of its shards" in done.err


@pytest.mark.parametrize("output", ["-", "out.csv"])
def test_a_merge_does_not_offer_stdout(cli: Cli, output: str) -> None:
    done = cli("merge", "-o", output)
    assert done.exit_code == 2 and done.err.endswith("ends in .jsonl, .ndjson, .parquet\n")
