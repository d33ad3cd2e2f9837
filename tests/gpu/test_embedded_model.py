"""The embedded model on a GPU chooses what it chooses on a CPU, wherever that choice is clear."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from gpu_models import Passes, ask, greedy_requests, load_model, make_engine, sequences, token_data
from shadow import shadowed
from torch import Tensor

from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm import reference as gemm

pytestmark = pytest.mark.gpu

NUM_PROMPTS, NUM_TOKENS, AT_ONCE = 200, 64, 20
# The loose limit of the golden data (kdim-a, any length): noise flips choices with smaller margins.
CLEAR_MARGIN = 0.9967
# Kernels whose results are integers or bytes, or one rounding of an exact sum: equal, or nearly.
EXACT = {
    "engram_hash", "engram_lookup", "paged_index_scores", "listed_index_scores", "select_topk",
    "candidate_blocks", "pool_rows",
}  # fmt: skip


@cache
def teacher_forced(device: str) -> Tensor:
    """Logits [prompts, 64, V] before each token of the stored answers."""
    model = load_model("embedded", device)
    logits = []
    asked = sequences(NUM_PROMPTS)
    for first in range(0, NUM_PROMPTS, AT_ONCE):
        group = asked[first : first + AT_ONCE]
        passes = Passes(model, len(group), max(map(len, group)))
        rows = passes.run(list(enumerate(group)))
        for part in torch.split(rows, [len(sequence) for sequence in group]):
            logits.append(part[-NUM_TOKENS - 1 : -1])
    return torch.stack(logits)


def margins(logits: Tensor) -> Tensor:
    top = logits.topk(2, dim=-1).values
    return top[..., 0] - top[..., 1]


def test_argmax_where_the_cpu_is_clear() -> None:
    cpu, gpu = teacher_forced("cpu"), teacher_forced("cuda")
    is_clear = margins(cpu) > CLEAR_MARGIN
    same = (cpu.argmax(-1) == gpu.argmax(-1))[is_clear]
    assert int(is_clear.sum()) > NUM_PROMPTS * NUM_TOKENS // 2
    assert float(same.double().mean()) >= 0.99


def choices_with_noise(number: int, place: int, patch: pytest.MonkeyPatch) -> set[int]:
    """What a CPU chooses there if the sums of its linears are off by about 2**-20, 24 times."""
    exact, generator = gemm._matmul_f32, torch.Generator()

    def noisy(x: Tensor, weight: Weight) -> Tensor:
        sums = exact(x, weight)
        return sums * (1 + torch.randn(sums.shape, generator=generator) * 2.0**-20)

    patch.setattr(gemm, "_cpu_has_bf16", lambda: False)
    patch.setattr(gemm, "_matmul_f32", noisy)
    sequence = sequences(number + 1)[number]
    end = len(sequence) - NUM_TOKENS + place
    found = set()
    for seed in range(24):
        generator.manual_seed(seed)
        logits = Passes(load_model("embedded", "cpu"), 1, end).run([(0, sequence[:end])])
        found.add(int(logits[-1].argmax()))
    patch.undo()
    return found


def test_greedy_answers_part_where_the_cpu_is_not_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored answers are the CPU's greedy ones.

    A margin beyond the limit is not clear either where the least noise flips the CPU's own choice:
    one expert or one FP8 rounding that changes can turn it (docs/numerics.md).
    """
    clear = margins(teacher_forced("cpu"))
    done = ask(make_engine("embedded", "cuda", max_num_seqs=64), greedy_requests(NUM_PROMPTS))
    stored = [sequence[-NUM_TOKENS:] for sequence in sequences(NUM_PROMPTS)]
    parted = []
    for number, expected in enumerate(stored):
        differs = torch.tensor(done[str(number)].output_token_ids) != expected
        if bool(differs.any()):
            parted.append((number, int(differs.nonzero()[0, 0])))
    beyond = [place for place in parted if float(clear[place]) >= CLEAR_MARGIN]
    assert len(beyond) <= NUM_PROMPTS // 100, beyond
    for place in beyond:
        assert len(choices_with_noise(*place, monkeypatch)) > 1, place


@pytest.mark.parametrize("name", ["embedded", "tiny-a", "kdim-a"])
def test_every_kernel_agrees_inside_the_model(name: str) -> None:
    """On the inputs that the model gives it, prompts and single tokens."""
    model = load_model(name, "cuda")
    group = [sequence % model.config.vocab_size for sequence in sequences(4)]
    with shadowed() as found:
        passes = Passes(model, len(group), 512)
        passes.run([(i, sequence[:-2]) for i, sequence in enumerate(group)])
        for left in (2, 1):
            passes.run([(i, sequence[-left:][:1]) for i, sequence in enumerate(group)])
    seen = {"sparse_attention", "expert_pairs", "split_projection", "store_latents"}
    assert seen | {"advance_streams", "gated_linear_and_logits", "route"} <= found.keys()
    for operation, agreement in found.items():
        assert not agreement.error, operation
        # A product and its activation, rounded to E4M3, whose numbers are up to 12 % apart.
        limit = 0.03 if operation.startswith("gated_linear") else 0.02
        assert agreement.relative < limit, operation
        if operation in EXACT:
            assert agreement.num_equal == agreement.num_values, operation


def test_the_stored_prompts_are_whole() -> None:
    data = token_data()
    assert len(data["prompt_lens"]) == NUM_PROMPTS
    assert len(data["token_ids"]) == int(data["prompt_lens"].sum()) + NUM_PROMPTS * NUM_TOKENS
