"""What ``deepinfer bench`` keeps: its file, its page, its pictures, its comparison."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from bench_records import a_measurement, a_record
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.bench.plan import BenchPlan
from deepinfer_cli.bench import plots
from deepinfer_cli.bench.compare import comparison
from deepinfer_cli.bench.page import cost_per_million, page
from deepinfer_cli.bench.plots import save_plots
from deepinfer_cli.bench.record import SCHEMA, BenchRecord
from deepinfer_cli.typed_json import from_json, json_schema, to_json


def test_the_page_follows_from_the_file(tmp_path: Path) -> None:
    record = a_record()
    record.save(tmp_path)
    loaded = BenchRecord.load(tmp_path)
    assert page(loaded) == page(record)
    assert "host memory" not in page(record)
    row = next(line for line in page(loaded).splitlines() if "8 requests" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "8 requests, no drafts", "3", "10.00", "2.00 (modeled)", "0.00", "8.0", "800", "667",
        "100", "40.0%", "40.0%", "41.7%", f"{cost_per_million(2.0, 800):,.2f}",
    ]  # fmt: skip


def test_the_form_of_experts_is_told_where_there_are_two() -> None:
    rows = (a_measurement(), a_measurement(name="16 requests", experts_as_fp8=True))
    found = {}
    for line in page(a_record(measurements=rows)).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found[cells[0]] = cells[1:2]
    assert found["measurement"] == ["experts"] and found["16 requests"] == ["fp8"]
    assert found["8 requests, no drafts"] == ["fp4"]
    assert re.search(r"measurement \| +steps", page(a_record()))


def test_the_schema_in_docs_is_the_definition_and_holds(tmp_path: Path) -> None:
    schema = json_schema(BenchRecord, SCHEMA)
    fresh = tmp_path / "bench.schema.json"
    fresh.write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")
    stored = Path(__file__).parents[2] / "docs" / "schemas" / "bench.schema.json"
    assert stored.read_text(encoding="utf-8") == fresh.read_text(), f"copy {fresh} there"
    jsonschema.Draft202012Validator.check_schema(schema)
    a_record().save(tmp_path)
    written = json.loads((tmp_path / "bench.json").read_bytes())
    jsonschema.validate(written, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written | {"measurements": [{"phase": 1}]}, schema)


def test_tables_on_the_host_are_told_with_their_size(tmp_path: Path) -> None:
    record = a_record(measurements=(a_measurement(host_table_bytes=4.3e9), a_measurement(ranks=64)))
    record.save(tmp_path)
    [note] = [line for line in page(BenchRecord.load(tmp_path)).splitlines() if "host mem" in line]
    assert note.startswith("* EP8: ") and "tables of 4.3 GB stand for" in note


@given(
    st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=5),
    st.floats(0, 10),
    st.floats(1e-3, 1e6),
    st.text(max_size=20),
)
def test_every_record_comes_back(
    steps: list[float], link_s: float, num_tokens: float, name: str
) -> None:
    row = a_measurement(step_s=tuple(steps), link_s=link_s, num_tokens=num_tokens, name=name)
    record = a_record(measurements=(row,))
    again = from_json(BenchRecord, json.loads(json.dumps(to_json(record))))
    assert again == record and page(again) == page(record)
    assert min(row.overlap_s, row.serial_s) >= row.local_s


def test_a_faster_run_has_a_ratio_above_one() -> None:
    new = a_record(measurements=(a_measurement(step_s=(0.005,)),))
    text = comparison(new, a_record())
    assert re.search(r"decode: 8 requests, no drafts \|\s+800.0 \|\s+1,600.0 \|\s+2.000", text)
    other = a_record(measurements=(a_measurement(name="another"),))
    assert "No row is in both" in comparison(other, a_record())


def test_what_changed_since_an_earlier_run_is_told() -> None:
    old, row = a_record(), a_measurement(experts_as_fp8=True, present=2)
    assert "Not the same" not in comparison(old, old)
    plan = BenchPlan(acceptance=0.5, output_projection="fp8", expert_weights="fp4")
    new = a_record(
        device="another device", measured_model="another model", links="EP8 over rdma400",
        plan=plan, measurements=(row,),
    )  # fmt: skip
    text = comparison(new, old)
    for line in (
        "device: a device, now another device",
        "model: a model, now another model",
        "link: EP8 over nvlink, now EP8 over rdma400",
        "acceptance: 75%, now 50%",
        "form of experts: auto, now fp4",
        "inputs of the output projection: bf16, now fp8",
        "experts of decode: 8 requests, no drafts: fp4, now fp8",
        "ranks present of decode: 8 requests, no drafts: 1, now 2",
    ):
        assert f"* {line}\n" in text


def test_pictures(tmp_path: Path) -> None:
    names = {path.name for path in save_plots(a_record(), tmp_path)}
    assert names == {"pareto.png", "pareto.svg", "step.png", "step.svg"}
    assert all((tmp_path / name).stat().st_size > 5_000 for name in names)


def test_bars_are_as_long_as_their_steps() -> None:
    """Parts, what is left of the step, and the link; a row that is not split is one bar."""
    from matplotlib import pyplot

    rows = (a_measurement(), a_measurement(name="another", parts_s={}))
    figure, axes = pyplot.subplots()
    assert plots._draw_steps(a_record(measurements=rows), axes)
    widths = {0: 0.0, 1: 0.0}
    for patch in axes.patches:
        widths[round(patch.get_y() + patch.get_height() / 2)] += patch.get_width()
    pyplot.close(figure)
    for place, row in enumerate(rows):
        assert widths[place] == pytest.approx(row.serial_s * 1e3)


def test_a_foreign_file_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text('{"schema": "other"}')
    with pytest.raises(Exception, match=re.escape("is not the result of deepinfer bench")):
        BenchRecord.load(tmp_path)
