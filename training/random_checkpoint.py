"""Writes a random checkpoint of a given config, with a tokenizer, in the official format.

Same arguments, same bytes.  For example:
    python training/random_checkpoint.py --config config.json --tokenizer tokenizer.json --out model
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from deepinfer.engine.checkpoint.checkpoint_writer import write_checkpoint
from deepinfer.engine.checkpoint.random_weights import random_tensors
from deepinfer.engine.model.config import ModelConfig


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a random checkpoint.")
    parser.add_argument("--config", type=Path, required=True, help="config.json of the model")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json to copy")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config = ModelConfig.from_file(arguments.config)
    write_checkpoint(arguments.out, config, random_tensors(config, arguments.seed))
    shutil.copyfile(arguments.tokenizer, arguments.out / "tokenizer.json")
    size = sum(path.stat().st_size for path in arguments.out.iterdir())
    print(f"{arguments.out}: {size / 1e6:.1f} MB, seed {arguments.seed}")


if __name__ == "__main__":
    main()
