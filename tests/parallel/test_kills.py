"""Twenty random kills: a run ends with an error or recovers, and going on gives the whole file."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deepinfer import OfflineEngine
from deepinfer_cli.main import load_engine, main
from deepinfer_cli.settings.settings import Settings

NUM_ROWS = 30
LAYOUTS = {
    "experts on two ranks": ["--expert-parallel-size", "2"],
    "prompts on one rank": ["--prefill-ranks", "1", "--decode-ranks", "1"],
}


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ten_random_kills(layout: str, tmp_path: Path) -> None:
    source, whole, output = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "out.jsonl"))
    source.write_text("".join(f'{{"prompt": "Number {i}"}}\n' for i in range(NUM_ROWS)))
    command = ["run", str(source), "--max-num-seqs", "2", "--max-tokens", "16", "-q", "-o"]
    assert main([*command, str(whole)]) == 0
    generator = random.Random(layout)
    num_killed = 0
    while num_killed < 10:
        kills: list[int] = []

        def with_a_killer(settings: Settings, kills: list[int] = kills) -> Any:
            engine = load_engine(settings)
            assert isinstance(engine, OfflineEngine)
            victim = generator.choice(engine.process_ids)

            def kill() -> None:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    kills.append(victim)

            timer = threading.Timer(generator.uniform(0, 1.5), kill)
            timer.daemon = True
            timer.start()
            return engine

        code = main([*command, str(output), *LAYOUTS[layout]], with_a_killer)
        num_killed += len(kills)
        assert code in (0, 1)
        if code == 0:
            assert output.read_bytes() == whole.read_bytes()
            output.unlink()
            Path(f"{output}.report.json").unlink()
    code = main([*command, str(output), *LAYOUTS[layout]])
    assert code == 0 and output.read_bytes() == whole.read_bytes()
