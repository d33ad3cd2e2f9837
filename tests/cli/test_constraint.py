"""Flags that hold answers to a form: what reaches the engine, what is refused, results, report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from deepinfer_cli.main import main

Cli = Callable[..., Any]
_CHECKPOINT = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"
_SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}


@pytest.fixture
def folder(in_tmp: Path) -> Path:
    Path("in.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    Path("schema.json").write_text(json.dumps(_SCHEMA))
    Path("dates.gbnf").write_text('root ::= [0-9]+ "-" [0-9]+')
    return in_tmp


@pytest.mark.parametrize(
    "flags, constraint",
    [
        ([], None),
        (["--regex", "a|b"], {"regex": "a|b"}),
        (["--grammar", "dates.gbnf"], {"grammar": 'root ::= [0-9]+ "-" [0-9]+'}),
        (
            ["--json-schema", "schema.json"],
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": _SCHEMA},
                }
            },
        ),
    ],
)
def test_flags_are_what_a_row_would_say(
    cli: Cli, folder: Path, flags: list[str], constraint: dict[str, Any] | None
) -> None:
    done = cli("run", "in.jsonl", "-o", "out.jsonl", *flags)
    assert done.exit_code == 0 and done.engines[0].constraint == constraint
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    verdicts = {"valid": 2} if constraint else {}
    assert [row.get("constraint") for row in rows] == (["valid"] * 2 if constraint else [None] * 2)
    assert json.loads(Path("out.jsonl.report.json").read_text())["constraints"] == verdicts


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--regex", "a", "--grammar", "dates.gbnf"], "--regex and --grammar"),
        (["--grammar", "none.gbnf"], "none.gbnf: No such file"),
        (["--json-schema", "dates.gbnf"], "dates.gbnf: invalid_schema: json_schema: not JSON at"),
        (["--json-schema", "list.json"], "list.json: invalid_schema"),
        (["--json-schema", "latin.json"], "latin.json is not UTF-8"),
        (["--regex", ""], "the value after --regex is empty"),
    ],
)
def test_what_is_wrong_with_a_flag_ends_the_run_at_once(
    cli: Cli, folder: Path, flags: list[str], words: str
) -> None:
    Path("list.json").write_text("[1]")
    Path("latin.json").write_bytes(b'{"title": "\xe9"}')
    done = cli("run", "in.jsonl", "-o", "out.jsonl", *flags)
    assert done.exit_code == 2 and words in done.err and not done.engines
    assert not Path("out.jsonl.partial").exists()


def test_a_run_does_not_go_on_with_another_file_under_the_same_name(cli: Cli, folder: Path) -> None:
    Path("in.jsonl").write_text('{"prompt": "a"}\n' * 8 + '{"crash": 1}\n')
    command = ["run", "in.jsonl", "-o", "out.jsonl", "--grammar", "dates.gbnf"]
    assert cli(*command).exit_code == 1
    Path("dates.gbnf").write_text('root ::= "x"')
    assert "constraint was" in cli(*command).err
    Path("dates.gbnf").write_text('root ::= [0-9]+ "-" [0-9]+')
    assert cli(*command).exit_code == 1  # it goes on, to the row that crashes


def test_real_answers_match(folder: Path) -> None:
    rows = [
        {"prompt": "x"},
        {"prompt": "y", "grammar": "start: /[a-z]{3}/"},
        {"prompt": "z", "response_format": {"type": "text"}, "max_tokens": 4},
        {"prompt": "w", "regex": "("},
    ]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["run", "in.jsonl", "--quiet", "--model", str(_CHECKPOINT), "--temperature", "1.5"]
    assert main([*command, "-o", "out.jsonl", "--regex", "[0-9]{2}"]) == 3
    found = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [row.get("constraint") for row in found] == ["valid", "valid", None]
    assert re.fullmatch("[0-9]{2}", found[0]["content"])
    assert re.fullmatch("[a-z]{3}", found[1]["content"])
    (error,) = Path("out.jsonl.errors.jsonl").read_text().splitlines()
    assert json.loads(error)["error"]["kind"] == "invalid_regex"
    assert main([*command, "-o", "out.parquet", "--regex", "[0-9]{2}"]) == 3
    table = pq.read_table("out.parquet").to_pylist()
    assert [row["constraint"] for row in table] == ["valid", "valid", None]


_WRONG_FILES = {
    "cut.json": '{"type": "object",\n "required": [}',
    "typo.json": '{"type": "object", "properties": {"a": {"type": "strng"}}}',
    "keyword.json": '{"type": "object", "properties": {"a": {"contains": {}}}}',
    "ref.json": '{"$ref": "#/$defs/a"}',
    "twice.json": '{"type": "object", "type": "array"}',
    "never.json": '{"type": "integer", "minimum": 3, "maximum": 2}',
    "left.gbnf": 'root ::= a\na ::= a "x" | "y"',
    "undefined.gbnf": 'root ::= "x"\n  | nothing',
    "open.gbnf": 'root ::= "x',
    "undefined.lark": "start: nothing",
    "huge.gbnf": "root ::= [a-z]{99999}",
}


_WRONG_FLAGS = [
    ("--regex", "(a", "invalid_regex: .*unclosed group"),
    ("--regex", "a(?=b)", "invalid_regex: .*look-around"),
    ("--regex", "x{2,1}", "invalid_regex: .*after 'x'"),
    ("--regex", "a\\", "invalid_regex: .*backslash"),
    ("--json-schema", "cut.json", "invalid_schema: .*line 2, column 15"),
    ("--json-schema", "typo.json", "invalid_schema: .*#/properties/a/type"),
    ("--json-schema", "keyword.json", "unsupported_keyword: .*#/properties/a.*'contains'"),
    ("--json-schema", "ref.json", "invalid_schema: .*/\\$defs/a"),
    ("--json-schema", "twice.json", "invalid_schema: .*the key 'type' is there twice"),
    ("--json-schema", "never.json", "invalid_schema: .*minimum .3. is greater"),
    ("--grammar", "left.gbnf", "invalid_grammar: .*line 2.*left"),
    ("--grammar", "undefined.gbnf", "invalid_grammar: .*line 2.*nothing"),
    ("--grammar", "open.gbnf", "invalid_grammar: .*line 1"),
    ("--grammar", "undefined.lark", "invalid_grammar: .*nothing"),
    ("--grammar", "huge.gbnf", "invalid_grammar: .*line 1, column 15: more than"),
    ("--regex", "(a{1000}){1000}", "constraint_too_complex: "),
]
# Each form with one verb, and with the others one of each flag.
_WRONG = [("run", *wrong) for wrong in _WRONG_FLAGS] + [
    (verb, *wrong) for verb in ("plan", "doctor", "bench run") for wrong in _WRONG_FLAGS[:15:5]
]


@pytest.mark.parametrize("verb, flag, value, words", _WRONG)
def test_what_is_wrong_with_a_form_is_told_before_anything_is_loaded(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str, flag: str, value: str,
    words: str,
) -> None:  # fmt: skip
    """The flag, the file, the place and the reason."""
    for name, text in _WRONG_FILES.items():
        Path(name).write_text(text)
    monkeypatch.setattr("deepinfer.dry_run.open_model", lambda *a, **k: pytest.fail("loaded"))
    source = [] if verb == "doctor" else ["in.jsonl"]
    done = cli(*verb.split(), *source, flag, value)
    told = done.out.decode() if verb == "doctor" else done.err
    told = " ".join(told.split())
    assert done.exit_code == (1 if verb == "doctor" else 2), told
    assert re.search(f"{flag} {re.escape(value)}: {words}", told), told
    assert not done.engines and not list(Path().glob("*.partial"))


def test_a_form_from_elsewhere_is_told_as_it_was_given(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("deepinfer.yaml").write_text("temperature: 1\nregex: '(a'\n")
    assert "deepinfer.yaml:2: regex (a: invalid_regex" in cli("run", "in.jsonl").err
    Path("deepinfer.yaml").unlink()
    monkeypatch.setenv("DEEPINFER_GRAMMAR", "open.gbnf")
    Path("open.gbnf").write_text('root ::= "x')
    assert "DEEPINFER_GRAMMAR open.gbnf: invalid_grammar" in cli("run", "in.jsonl").err
