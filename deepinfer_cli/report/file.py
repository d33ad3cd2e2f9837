"""Finds and reads the report of a run, given its output, its report file or its partial folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deepinfer.errors import ConfigError
from deepinfer_cli.output.paths import OutputPaths, default_output
from deepinfer_cli.small_file import read_small
from deepinfer_cli.strict_json import read_json
from deepinfer_cli.typed_json import WrongForm, from_json

from .report import SCHEMA, Report

_ENDING = ".report.json"


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report and its file."""

    path: Path
    report: Report

    @property
    def results(self) -> Path | None:
        """The result file in the same folder, None if there is none."""
        if not self.path.name.endswith(_ENDING):
            return None
        path = self.path.with_name(self.path.name.removesuffix(_ENDING))
        return path if path.is_file() else None

    def beside(self, ending: str) -> Path:
        """The path of a page about it: the same name with another extension."""
        if self.path.name.endswith(_ENDING):
            return self.path.with_name(self.path.name.removesuffix(".json") + ending)
        return self.path.with_suffix(ending)


def read_report(run: str) -> StoredReport:
    """The report of ``run``.  Raises: ConfigError that says where it was searched."""
    path = _find(Path(run))
    try:
        data = read_json(read_small(path))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot read {path}: {reason}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a report: {str(error).lower()}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ConfigError(f"{path} is not a report of this version of deepinfer ({SCHEMA})")
    try:
        return StoredReport(path, from_json(Report, data))
    except WrongForm as error:
        raise ConfigError(f"{path} is not a complete report: {error}") from error


def _find(run: Path) -> Path:
    """The report of the finished run if there is one, else that of the stopped part."""
    if not run.name:
        raise ConfigError(f"{run} is not a run; give the output of a run, or its report file")
    if run.name.endswith(".partial"):
        places = [run / "report.json"]
    elif run.suffix == ".json":
        places = [run]
    else:
        paths = OutputPaths(run)
        places = [paths.report, paths.partial / "report.json"]
    own = OutputPaths(Path(default_output(str(run))))  # if ``run`` is an input
    found = next(filter(Path.is_file, (*places, own.report, own.partial / "report.json")), None)
    if found is None:
        looked = " or ".join(map(str, places))
        raise ConfigError(
            f"no report of {run}: expected {looked}; give the output of a run, or the report file "
            "(it is written when the run ends; deepinfer status shows the progress)"
        )
    return found
