"""Answers the stored prompts anew on the CPU, after the embedded model has changed.

PYTHONPATH=.:tests/gpu python tests/gpu/renew_answers.py
"""

from __future__ import annotations

from pathlib import Path

import gpu_models
import numpy as np

FILE = Path(__file__).parent / "data" / "token_ids.npz"


def main() -> None:
    with np.load(FILE) as arrays:
        stored = {name: arrays[name] for name in arrays.files}
    requests = gpu_models.greedy_requests(len(stored["prompt_lens"]))
    done = gpu_models.ask(gpu_models.make_engine("embedded", "cpu", max_num_seqs=64), requests)
    ids = [
        token
        for request in requests
        for token in (*request.prompt_token_ids, *done[request.request_id].output_token_ids)
    ]
    stored["token_ids"] = np.array(ids, dtype=stored["token_ids"].dtype)
    np.savez_compressed(FILE, **stored)


if __name__ == "__main__":
    main()
