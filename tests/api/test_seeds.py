"""Seeds are a fixed function: these numbers are part of the promise of reproducible files."""

from __future__ import annotations

from deepinfer.rows.seeds import sample_seed

KNOWN = (2463529039079364403, 8205342525921307919, 3489645706765977730)


def test_the_function_never_changes():
    assert sample_seed(None, run_seed=0, row=0, sample=0) == KNOWN[0]
    assert sample_seed(None, run_seed=1, row=2, sample=3) == KNOWN[1]
    assert sample_seed(7, run_seed=1, row=2, sample=3) == KNOWN[2]


def test_an_own_seed_is_used_as_it_is():
    assert sample_seed(7, run_seed=1, row=2, sample=0) == 7


def test_all_differ():
    seeds = {
        sample_seed(own, run_seed=run, row=row, sample=sample)
        for own in (None, 0, 1)
        for run in (range(3) if own is None else (0,))
        for row in (range(50) if own is None else (0,))
        for sample in range(5)
    }
    assert len(seeds) == 3 * 50 * 5 + 2 * 5
    assert all(0 <= seed < 2**64 for seed in seeds)
