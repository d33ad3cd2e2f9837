"""Replicas on a Ray cluster: complete, exact and in order, also when one is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer import OfflineEngine
from deepinfer.errors import ConfigError
from deepinfer_cli.main import load_engine, main
from deepinfer_cli.settings.settings import Settings

NUM_ROWS = 2000


def test_what_a_cluster_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave the parallel sizes at 1"):
        OfflineEngine(cluster="auto", expert_parallel_size=2, device="cpu")
    with pytest.raises(ConfigError, match="num_replicas=2: set cluster"):
        OfflineEngine(num_replicas=2, device="cpu")


@pytest.fixture
def ray() -> Iterator[Any]:
    module = pytest.importorskip("ray")
    module.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield module
    module.shutdown()


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # Ray warns about its own future
def test_two_replicas_one_of_which_is_lost(ray: Any, tmp_path: Path) -> None:
    source, whole, output = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "out.jsonl"))
    source.write_text("".join(f'{{"prompt": "Number {i}"}}\n' for i in range(NUM_ROWS)))
    command = ["run", str(source), "--max-tokens", "2", "--max-num-seqs", "16", "-q", "-o"]
    assert main([*command, str(whole)]) == 0

    def engine_with_a_victim(settings: Settings) -> Any:
        engine = load_engine(settings)
        assert isinstance(engine, OfflineEngine)
        return Loser(engine, ray)

    replicas = ["--cluster", "auto", "--num-replicas", "2"]
    assert main([*command, str(output), *replicas], engine_with_a_victim) == 0
    assert output.read_bytes() == whole.read_bytes()


class Loser:
    """An engine whose second replica dies after a hundred answers."""

    def __init__(self, engine: OfflineEngine, ray: Any) -> None:
        self.engine = engine
        self.ray = ray

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def stream(self, *arguments: Any, **named: Any) -> Any:
        for number, output in enumerate(self.engine.stream(*arguments, **named)):
            if number == 100:
                ranks = self.engine._open().engine._ranks  # type: ignore[attr-defined]
                self.ray.kill(ranks._actors[1])
            yield output
        assert "replica 1 is gone" in self.engine.notes["rank 1"]
