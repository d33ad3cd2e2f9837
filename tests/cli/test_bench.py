"""``deepinfer bench``: the verb, its flags, its notes and its refusals."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from bench_records import a_measurement

from deepinfer.bench.embedded import EnginePlan
from deepinfer.bench.limits import limit_rows
from deepinfer.bench.plan import BenchPlan
from deepinfer.bench.results import Ceiling, LimitRow
from deepinfer.engine.model.config import ModelConfig
from deepinfer_cli.bench import verb
from deepinfer_cli.bench.page import page
from deepinfer_cli.bench.plan_flags import plan_fields
from deepinfer_cli.bench.prompts import prompt_lengths
from deepinfer_cli.bench.record import BenchRecord


@pytest.mark.parametrize("knows", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_verb_measures_and_writes(
    cli, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, knows: bool
) -> None:
    if knows:
        request.getfixturevalue("known_ceilings")
    monkeypatch.setattr(verb, "EnginePlan", partial(verb.EnginePlan, num_tokens=8, num_rounds=1))
    outcome = cli("bench", "--phase", "decode", "--requests", "1", "--ep", "64",
                           "-o", "found", "--quiet")  # fmt: skip
    assert outcome.exit_code == 0, outcome.err
    record = BenchRecord.load(in_tmp / "found")
    assert [row.name for row in record.measurements] == [
        "1 request, no drafts",
        "1 request, auto",
    ]
    assert [row.ranks for row in record.limits] == [64]
    assert outcome.out.decode() == (in_tmp / "found" / "bench.md").read_text() == page(record)


@pytest.fixture
def known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the machine's products had been measured: seconds, which are another test's."""
    known = [
        Ceiling(name="copy, read and written", value=1e10, unit="B/s"),
        Ceiling(name="bfloat16 1024 cubed", value=1e11, unit="FLOP/s"),
        Ceiling(name="float32 1024 cubed", value=1e11, unit="FLOP/s"),
    ]
    monkeypatch.setattr(verb, "cpu_ceilings", lambda: known)


@pytest.mark.usefixtures("known_ceilings")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_what_was_measured(
    number: signal.Signals, cli, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object):
        yield a_measurement()
        signal.raise_signal(number)

    monkeypatch.setattr(verb, "measure_engine", interrupted)
    before = signal.signal(number, signal.default_int_handler if number == 2 else signal.SIG_DFL)
    try:
        outcome = cli("bench", "-o", "found", "--quiet")
    finally:
        signal.signal(number, before)
    assert outcome.exit_code == 128 + number
    record = BenchRecord.load(in_tmp / "found")
    assert len(record.measurements) == 1 and not record.is_complete
    assert "Stopped early" in (in_tmp / "found" / "bench.md").read_text()


@pytest.mark.usefixtures("known_ceilings")
def test_an_error_keeps_what_was_measured_before_it(
    cli, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object):
        yield a_measurement()
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(verb, "measure_engine", failing)
    outcome = cli("bench", "-o", "found", "--quiet")
    assert outcome.exit_code == 1 and "an illegal memory access" in outcome.err
    record = BenchRecord.load(in_tmp / "found")
    assert len(record.measurements) == 1 and not record.is_complete


@pytest.mark.usefixtures("known_ceilings")
def test_what_a_whole_engine_has_no_use_for_is_said(
    cli, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[EnginePlan] = []
    made: list[dict[str, object]] = []

    def measured(plan: EnginePlan, make_engine: Callable[[int], object], *_: object):
        plans.append(plan)
        make_engine(2)
        yield a_measurement()

    monkeypatch.setattr(verb, "measure_engine", measured)
    monkeypatch.setattr("deepinfer.OfflineEngine", lambda model, **rest: made.append(rest))
    arguments = ("--steps", "5", "--routing", "even", "--context", "4096", "--requests", "3")
    drafts = ("--drafts", "2,auto", "--output-projection", "fp8")
    outcome = cli("bench", "--device", "cpu", *arguments, *drafts)
    text = outcome.out.decode()
    for said in (
        "used only when a GPU measures a rank, without effect here: --routing, --steps\n",
        "used only for the limits, without effect on measurements here: --context\n",
    ):
        assert f"warning: {said}" in outcome.err and f"* {said}" in text
    assert plans == [EnginePlan(requests=(3,), drafts=(2, None))]
    assert made[0]["output_projection"] == "fp8" and made[0]["num_speculative_tokens"] == 2
    assert "used only" not in cli("bench", "--device", "cpu", "--requests", "3").err
    assert plans[1:] == [EnginePlan(requests=(3,))]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--ep", "400"], "--ep=400: the model has 384 experts"),
        (["--context", "3M"], "--context=3000000: the model's is 1048576"),
        (["--context", "-1"], "--context=-1: expected 1 to 2147483648"),
        (["--device-profile", "h20"], "--device-profile='h20': expected one of h200"),
        (["--link", "rdma40"], "--link='rdma40': expected one of nvlink"),
        (["--requests", "8,x"], "--requests x: expected whole numbers"),
        (["--requests", "8,0"], "--requests=0: expected 1 to"),
        (["--phase", "all"], "--phase all: expected decode, prefill or both"),
        (["--preset", "fast"], "--preset fast: expected launch"),
        (["--drafts", "6"], "--drafts=6: the model drafts at most 5"),
        (["--drafts", "-1"], "--drafts=-1: expected 0 to 1024, or auto"),
        (["--drafts", "auto,x"], "--drafts x: expected whole numbers"),
        (["--modes", "exact,fast"], "--modes='fast': expected exact or batch-invariant"),
        (["--routing", "odd"], "--routing='odd': expected even or skewed or balanced"),
        (["--routing", "none"], "--routing=(): expected at least one"),
        (["--ep", "12", "--link", "rdma400"], "--ep=12: 12 ranks over rdma400"),
        (["--ep", "0"], "--ep 0: expected whole numbers of 1 or more"),
        (["--tokens", "0"], "--tokens=0: expected 1 to"),
        (["--acceptance", "120%"], "--acceptance=1.2: expected 0 to 1"),
        (["--expert-weights", "fp2"], "--expert-weights='fp2': expected auto or fp4 or fp8"),
        (["--output-projection", "fp4"], "--output-projection='fp4': expected bf16 or fp8"),
        (["--steps", "0"], "--steps=0: expected 1 to"),
        (["--seed", "-1"], "--seed=-1: expected 0 to 2**63 - 1"),
        (["--gpu-hour-price", "-1"], "--gpu-hour-price -1: expected a number, 0 or more"),
        (["--device", "meta"], "--device='meta': expected auto, cpu, cuda, cuda:N"),
        (["--device", "npu"], "--device='npu': bench measures NVIDIA GPUs and CPUs; expected auto"),
        (["--device", "cuda:99"], "--device='cuda:99': torch sees"),
        (["--plots"], "--plots needs a folder"),
        (
            ["-o", "empty.jsonl"],
            "-o empty.jsonl: cannot make this folder: file exists; give another",
        ),
        (["-o", "/proc/x"], "-o /proc/x: cannot make this folder: "),
        (["--compare", "nowhere"], "nowhere: no such file"),
        (["--prompts", "empty.jsonl"], "empty.jsonl has no prompts"),
        (["--prompts", "nowhere.jsonl"], "cannot read nowhere.jsonl: no such file"),
        (["--prompts", "latin.jsonl"], "latin.jsonl:2: byte 13 of the line is not UTF-8"),
    ],
)
def test_refusals(cli, in_tmp: Path, arguments: list[str], message: str) -> None:
    (in_tmp / "empty.jsonl").write_text("\n")
    (in_tmp / "latin.jsonl").write_bytes(b'\n{"prompt": "\xe9"}\n')
    outcome = cli("bench", *arguments)
    assert outcome.exit_code in (2, 4) and message in outcome.err and outcome.out == b""


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so(cli, in_tmp: Path) -> None:
    """Before it makes a folder."""
    outcome = cli("bench", "--device", "cuda", "-o", "launch")
    assert outcome.exit_code == 2 and "torch sees no such device; deepinfer doctor" in outcome.err
    assert not (in_tmp / "launch").exists()


def test_the_link_is_told_with_what_it_is_modelled_by() -> None:
    plan = BenchPlan(decode_ranks=(8, 64), prefill_ranks=(8,), link="rdma400")
    inside, across = verb._links(plan).split("; ")
    assert inside == "EP8 over h200 fabric (450 GB/s one way, 15 µs)"
    assert across == "EP64 over rdma400 (50 GB/s one way, 20 µs)"


def test_padding_and_sizes_that_do_not_fit_are_said() -> None:
    plan = BenchPlan(phases=("decode",), requests=(256,), decode_ranks=(1, 7), prefill_ranks=(1,))
    notes = list(verb._notes(plan, limit_rows(plan, ModelConfig.flash())))
    assert any("256 requests do not fit a rank of EP1 on h200" in note for note in notes)
    assert any(
        "EP1 on h200" in note and "the weights alone leave no room" in note for note in notes
    )
    assert any("EP7 does not divide 384 experts: each rank holds 55" in note for note in notes)


@pytest.mark.parametrize("change", [{}, {"lengths": (1_000, 200_000)}])
def test_a_size_that_does_not_fit_is_told_the_one_that_does(change: dict[str, object]) -> None:
    plan = BenchPlan(phases=("decode",), requests=(4_000,), **change)
    [note] = verb._notes(dataclasses.replace(plan, lengths=()), _limits(plan))
    found = re.search(r"4,000 requests do not fit .*; ([\d,]+) fit$", note)
    assert found is not None
    fit = int(found[1].replace(",", ""))
    fewer, more = (_limits(dataclasses.replace(plan, requests=(n,))) for n in (fit - 1, fit + 2))
    assert fewer[0].fits and not more[0].fits


def _limits(plan: BenchPlan) -> list[LimitRow]:
    return limit_rows(plan, ModelConfig.flash())


def test_a_file_is_run_often_and_leaves_nothing(cli, in_tmp: Path) -> None:
    (in_tmp / "in.jsonl").write_text('{"prompt": "one"}\n{"prompt": 5}\n')
    outcome = cli("bench", "run", "in.jsonl", "--rounds", "2", "-o", "runs.json", "-q")
    assert outcome.exit_code == 0, outcome.err
    page = outcome.out.decode()
    assert "1 rows answered, 1 failed" in page and "\n|     2 |" in page
    runs = json.loads((in_tmp / "runs.json").read_text())
    assert [report["rows"]["input"] for report in runs["reports"]] == [2, 2]
    assert sorted(path.name for path in in_tmp.iterdir()) == ["in.jsonl", "runs.json"]


def test_rounds_that_are_stopped_end_as_a_run_does(cli, in_tmp: Path) -> None:
    (in_tmp / "in.jsonl").write_text('{"prompt": "one"}\n')
    outcome = cli("bench", "run", "in.jsonl", "--time-limit", "0", "-q")
    assert outcome.exit_code == 75 and "round 1 ended with exit code 75" in outcome.err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["none.jsonl"], "none.jsonl"),
        (["failing.jsonl"], "failing.jsonl: no row was answered, so there is nothing to time"),
        (["in.jsonl", "--rounds", "0"], "expected 1 or more"),
        (["in.jsonl", "-o", "none/runs.json"], "--output none/runs.json: there is no folder none"),
        (["in.jsonl", "-o", "."], "--output .: it is a folder"),
    ],
)
def test_what_cannot_be_run_often(cli, in_tmp: Path, arguments: list[str], message: str) -> None:
    (in_tmp / "in.jsonl").write_text('{"prompt": "one"}\n')
    (in_tmp / "failing.jsonl").write_text('{"prompt": 1}\n')
    outcome = cli("bench", "run", *arguments)
    assert outcome.exit_code not in (0, 3) and message in outcome.err


def test_lengths_come_from_prompts() -> None:
    """Longer texts have more tokens, and no prompt is empty."""
    empty, short, long = prompt_lengths(["", "A fox.", "A fox and a dog. " * 20])
    assert empty == 1 < short < long


def test_a_gpu_is_measured_without_the_recipes() -> None:
    """Its prompts are random: a machine for measurements needs no tokenizer."""
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('deepseek_recipe', 'llguidance', 'jsonschema')))\n"
        "sys.argv = ['deepinfer', 'bench', '--device', 'cuda:99']\n"
        "from deepinfer_cli.main import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "cuda:99" in done.stderr, done.stderr


def test_a_flag_is_above_what_the_preset_sets() -> None:
    launch = plan_fields("launch", {"--ep": None, "--output-projection": None})
    assert launch["output_projection"] == "fp8" and launch["decode_ranks"] == (64,)
    given = plan_fields("launch", {"--ep": "8", "--output-projection": "bf16"})
    assert given["output_projection"] == "bf16" and given["prefill_ranks"] == (8,)
