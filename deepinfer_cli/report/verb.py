"""``deepinfer report``: pages, metrics and comparisons from the reports of runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from deepinfer.errors import ConfigError
from deepinfer_cli.stdio import data_stream
from deepinfer_cli.typed_json import to_json

from .file import StoredReport, read_report
from .report import encode_report

_ENDINGS = ".html, .md, .json or .prom"


def report_run(run: str, outputs: Sequence[str], *, as_json: bool, force: bool) -> None:
    """Write pages about one run: those in ``outputs``, else HTML and Markdown next to its output.

    Raises: ConfigError.
    """
    stored = read_report(run)
    if not outputs:
        data_stream()  # checked before anything is written
    if as_json:
        _print(encode_report(stored.report).decode())
    elif outputs:
        for output in outputs:
            _write(output, _maker(stored, output), force=force)
    else:
        for ending in (".html", ".md"):
            # Default pages are generated files, which may be overwritten.
            path = stored.beside(ending)
            _write(str(path), _maker(stored, ending), force=True)
            _print(str(path))


def compare_runs(a: str, b: str, outputs: Sequence[str], *, as_json: bool, force: bool) -> None:
    """Compare two runs; without ``outputs``, print Markdown on stdout."""
    from .comparison import compare
    from .pages.compared import comparison_html, comparison_markdown

    comparison = compare(read_report(a), read_report(b))

    def encoded() -> str:
        return json.dumps(to_json(comparison), ensure_ascii=False, indent=1) + "\n"

    makers = {
        ".json": encoded,
        ".md": lambda: comparison_markdown(comparison),
        ".html": lambda: comparison_html(comparison),
    }
    if as_json:
        _print(encoded().rstrip("\n"))
    for output in outputs or ([] if as_json else ["-"]):
        ending = ".md" if output == "-" else Path(output).suffix
        if ending not in makers:
            raise ConfigError(f"-o {output}: a comparison is written as .html, .md or .json")
        _write(output, makers[ending], force=force)


def _maker(stored: StoredReport, output: str) -> Callable[[], str]:
    report = stored.report
    ending = ".md" if output == "-" else Path(output).suffix or output
    if ending == ".html":
        from .pages.html import report_html

        return lambda: report_html(report)
    if ending == ".md":
        from .pages.markdown import report_markdown

        return lambda: report_markdown(report)
    if ending == ".prom":
        from .prometheus import prometheus_text

        return lambda: prometheus_text(report)
    if ending == ".json":
        return lambda: encode_report(report).decode() + "\n"
    raise ConfigError(f"-o {output}: expected a name that ends in {_ENDINGS}, or - for stdout")


def _write(output: str, make: Callable[[], str], *, force: bool) -> None:
    text = make()
    if output == "-":
        _print(text.rstrip("\n"))
        return
    path = Path(output)
    if path.exists() and not force:
        raise ConfigError(f"{path} already exists; --force replaces it")
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_bytes(text.encode("utf-8", "replace"))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot write {path}: {reason}; give another place (-o)") from error


def _print(text: str) -> None:
    stream = data_stream().buffer
    stream.write(text.encode("utf-8", "replace") + b"\n")
    stream.flush()
