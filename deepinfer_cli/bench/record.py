"""``bench.json``: all results of a benchmark, and the machine and versions they are from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deepinfer.bench.plan import BenchPlan
from deepinfer.bench.results import Ceiling, LimitRow, Measurement
from deepinfer.errors import ConfigError
from deepinfer_cli.host import Host
from deepinfer_cli.small_file import read_small
from deepinfer_cli.strict_json import read_json
from deepinfer_cli.typed_json import WrongForm, from_json, to_json

SCHEMA = "deepinfer.bench/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRecord:
    """``limits`` are for ``plan.device_profile`` and the full model, ``measurements`` for
    ``device`` and ``measured_model``."""

    schema: str = SCHEMA
    created: str
    command: str
    host: Host
    versions: Mapping[str, str]
    device: str
    is_on_gpu: bool = False
    driver: str | None = None
    measured_model: str
    plan: BenchPlan
    links: str
    ceilings: Sequence[Ceiling] = ()
    limits: Sequence[LimitRow] = ()
    measurements: Sequence[Measurement] = ()
    price_per_hour: float | None = None
    is_complete: bool = True
    notes: Sequence[str] = field(default=())

    def save(self, folder: Path) -> Path:
        """Write ``folder/bench.json``.  Raises: OSError."""
        path = folder / "bench.json"
        path.write_text(json.dumps(to_json(self), indent=1) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> BenchRecord:
        """Read the file, or the one in a folder.  Raises: ConfigError if it is not a record."""
        if path.is_dir():
            path = path / "bench.json"
        try:
            data = read_json(read_small(path))
            if not isinstance(data, dict) or data.get("schema") != SCHEMA:
                raise WrongForm(f"not {SCHEMA}")
            return from_json(cls, data)
        except OSError as error:
            raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not the result of deepinfer bench: {error}") from error
