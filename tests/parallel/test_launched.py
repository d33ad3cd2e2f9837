"""Processes that torchrun or SLURM starts: who is who, and a whole run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer.engine.parallel.groups import host_store
from deepinfer.engine.parallel.launched import launched_place
from deepinfer.errors import ConfigError
from deepinfer_cli.main import main

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4567"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.2"}


def test_places() -> None:
    place = launched_place({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}, 2)
    assert place is not None and (place.rank, place.host, place.port) == (1, "10.0.0.1", 4567)
    assert place.has_store
    place = launched_place(SLURM, 4)
    assert place is not None and (place.rank, place.host, place.port) == (3, "10.0.0.2", 29500)
    assert not place.has_store
    place = launched_place({**SLURM, "MASTER_ADDR": "node7", "SLURM_NTASKS_PER_NODE": "2"}, 4)
    assert place is not None and place.host == "node7" and place.ranks_per_node == 2


def test_a_run_that_needs_one_rank_ignores_a_launcher() -> None:
    """``srun -n 4 deepinfer run --shard ...`` is four runs."""
    assert launched_place(SLURM, 1) is None
    assert launched_place({}, 4) is None
    assert launched_place({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 4) is None


@pytest.mark.parametrize(
    ("environment", "world_size", "message"),
    [
        (TORCHRUN, 4, "WORLD_SIZE=2 processes were launched, but the parallel sizes need 4"),
        ({**TORCHRUN, "RANK": "one"}, 2, "RANK='one': expected the number"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, 2, "MASTER_ADDR is not set"),
    ],
)
def test_half_a_launcher_is_refused(
    environment: dict[str, str], world_size: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        launched_place(environment, world_size)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_a_launched_run_gives_one_ranks_file(launcher: str, tmp_path: Path) -> None:
    source, whole, output = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "out.jsonl"))
    source.write_text("".join(f'{{"prompt": "Number {i}"}}\n' for i in range(6)))
    options = ["--max-tokens", "8", "-q", "-o"]
    assert main(["run", str(source), *options, str(whole)]) == 0
    command = ["-m", "deepinfer_cli.main", "run", str(source), *options, str(output)]
    command += ["--expert-parallel-size", "2"]
    for _ in range(2):  # the second time there is nothing to do, and all ranks must end too
        if launcher == "torchrun":
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            arguments = [[sys.executable, *torchrun, *command, "--force"]]
            places: list[dict[str, str]] = [{}]
        else:
            store = host_store()
            port = store.port
            del store
            arguments = [[sys.executable, *command, "--force"]] * 2
            places = [
                {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port)}
                for rank in range(2)
            ]  # fmt: skip
        processes = [
            subprocess.Popen(line, env={**os.environ, **place}, stderr=subprocess.PIPE, text=True)
            for line, place in zip(arguments, places, strict=True)
        ]
        for process in processes:
            message = process.communicate(timeout=120)[1]
            assert process.returncode == 0, message
        assert output.read_bytes() == whole.read_bytes()
        source.write_text("")
        whole.write_bytes(b"")
