"""``OfflineEngine`` on a real checkpoint of the architecture, as a Python user meets it."""

from __future__ import annotations

import json
import shutil

import pytest

import deepinfer
from deepinfer import OfflineEngine, SamplingParams
from deepinfer.errors import CheckpointError, ConfigError, EngineError

SHORT = SamplingParams(max_tokens=6)
PROMPTS = [
    "Hello",
    {"messages": [{"role": "user", "content": "x"}], "n": 2, "thinking": "off"},
    [0, 5, 6, 7],
    {"prompt": "Zoë", "raw": True, "temperature": 0, "logprobs": True, "top_logprobs": 2},
]


def essence(outputs):
    """All that must not depend on how rows were scheduled."""
    return [
        [(s.text, s.token_ids, s.finish_reason, s.seed, s.logprobs) for s in output.samples]
        for output in outputs
    ]


@pytest.fixture(scope="module")
def engine(golden_model):
    with OfflineEngine(golden_model, max_num_seqs=4, batch_invariant=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine):
    return essence(engine.generate(PROMPTS, SHORT))


def test_outputs_come_in_input_order(engine):
    outputs = engine.generate(["long one", "b"], [SHORT, SamplingParams(max_tokens=1)])
    assert [output.row for output in outputs] == [0, 1]
    assert [output.usage.completion_tokens for output in outputs] == [6, 1]
    assert all(output.error is None for output in outputs)


def test_one_prompt_of_each_form(engine):
    assert len(engine.generate("a", SHORT)) == 1
    assert engine.generate([0, 5, 9], SHORT)[0].prompt_token_ids == (0, 5, 9)
    assert engine.generate("a", SHORT, raw=True)[0].kind == "raw"
    assert engine.generate([], SHORT) == []


def test_same_answers_in_other_company_and_in_a_second_engine(golden_model, engine, expected):
    assert essence(engine.generate(PROMPTS[:1], SHORT)) == expected[:1]
    with OfflineEngine(
        golden_model, max_num_seqs=2, batch_invariant=True, enable_speculative_dspark=False
    ) as other:
        assert essence(other.generate(PROMPTS, SHORT)) == expected


def test_the_run_seed_changes_sampled_answers_only(golden_model, expected):
    with OfflineEngine(golden_model, max_num_seqs=4, batch_invariant=True, seed=1) as other:
        outputs = essence(other.generate(PROMPTS, SHORT))
    assert outputs[0] != expected[0]
    greedy, before = outputs[3][0], expected[3][0]
    assert (greedy[0], greedy[1], greedy[4]) == (before[0], before[1], before[4])


def test_stream_yields_errors_and_answers(engine):
    rows = iter(
        [(10, {"prompt": "a"}), (11, {"nothing": 1}), (12, {"prompt": "a", "max_tokens": 1})]
    )
    outputs = {output.row: output for output in engine.stream(rows, SHORT)}
    assert set(outputs) == {10, 11, 12}
    assert outputs[11].error_kind == "unknown_kind"
    assert outputs[12].finish_reason == "length"


def test_a_stream_takes_what_generate_takes(engine, expected):
    for prompts in (PROMPTS, iter(PROMPTS), enumerate(PROMPTS), PROMPTS[0]):
        found = sorted(engine.stream(prompts, SHORT), key=lambda output: output.row)
        assert essence(found) == (expected[:1] if prompts is PROMPTS[0] else expected)
    each = [SHORT] * len(PROMPTS)
    found = sorted(engine.stream(iter(PROMPTS), each), key=lambda output: output.row)
    assert essence(found) == expected


@pytest.mark.parametrize("rows", [[5.5], [None], [b"a"], 7.5, None])
def test_a_stream_of_no_prompts_says_what_it_wants(engine, rows):
    for use in (engine.stream, engine.generate):
        with pytest.raises(ConfigError, match="prompts.*: expected a string"):
            list(use(rows, SHORT))
    assert next(engine.stream([(3, {"prompt": "a"})], SHORT)).row == 3


def test_the_engine_is_clean_after_an_abandoned_stream(engine, expected):
    stream = engine.stream([(0, {"prompt": "a"}), (1, {"prompt": "b", "max_tokens": 1})], SHORT)
    next(stream)
    stream.close()
    assert essence(engine.generate(PROMPTS, SHORT)) == expected


def test_stop_strings_end_the_answer_in_the_engine(engine):
    free = engine.generate("Hello", SamplingParams(max_tokens=30), raw=True)[0]
    stop = next(char for char in free.text[3:] if char.isalnum())
    cut = engine.generate("Hello", SamplingParams(max_tokens=30, stop=(stop,)), raw=True)[0]
    assert cut.text == free.text[: free.text.index(stop)]
    assert (cut.finish_reason, cut.samples[0].stop_reason) == ("stop", stop)
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]


def test_what_an_engine_tells_about_itself(engine, golden_model):
    assert engine.model_folder == golden_model
    assert engine.max_model_len <= engine.model_config.max_position_embeddings
    assert engine.engine_config.batch_invariant
    assert engine.engine_config.num_speculative_tokens == engine.model_config.dspark_block_size
    assert engine.notes == {}
    assert engine.stats().num_decode_tokens > 0


def test_close(golden_model):
    engine = OfflineEngine(golden_model, max_num_seqs=2)
    stream = engine.stream([(0, {"prompt": "a"}), (1, {"x": 1})])
    next(stream)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        next(stream)
    for use in (lambda: engine.generate("a"), engine.stats, lambda: engine.stream([])):
        with pytest.raises(EngineError, match="closed"):
            use()


@pytest.mark.parametrize(
    "arguments, named",
    [
        ({"tensor_parallel_size": 10**6}, "tensor_parallel_size=1000000 does not divide"),
        ({"expert_parallel_size": 0}, "expert_parallel_size"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_model_len": 10**9}, "max_model_len=1000000000: the model's context is"),
        ({"num_speculative_tokens": 50}, "num_speculative_tokens=50: the model drafts at most"),
        ({"seed": -1}, "seed"),
        ({"max_num_seqs": "8"}, "max_num_seqs='8': expected a whole number"),
        ({"max_model_len": "8k"}, "max_model_len='8k': expected a whole number"),
        ({"num_blocks": 2**70}, "num_blocks=1180591620717411303424: expected a whole number"),
        ({"num_speculative_tokens": []}, "num_speculative_tokens=.*: expected a whole number"),
        ({"cache_memory_gib": float("inf")}, "cache_memory_gib=inf"),
        ({"exact": "no"}, "exact='no': expected True or False"),
        ({"device": None}, "device=None"),
        ({"device": "abacus"}, "device"),
    ],
)
def test_settings_that_cannot_be_honoured(golden_model, arguments, named):
    with pytest.raises(ConfigError, match=named):
        OfflineEngine(golden_model, **arguments)


def test_a_forked_process_is_told_to_make_its_own(engine, monkeypatch):
    """An engine used after a fork once waited for ever for threads that the child does not have."""
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(EngineError, match="create one per process"):
        engine.generate("a", SHORT)


def test_arguments_of_generate(engine):
    with pytest.raises(ConfigError, match="thinking='hard'"):
        engine.generate("a", thinking="hard")
    with pytest.raises(ConfigError, match="2 sampling_params for 1 prompts"):
        engine.generate("a", [SHORT, SHORT])


def test_models_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="download"):
        OfflineEngine("deepseek-ai/DeepSeek-V4.1-Flash")
    with pytest.raises(CheckpointError):
        OfflineEngine(tmp_path / "nothing")


def test_a_tokenizer_of_another_model(golden_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(golden_model, folder)
    path = folder / "tokenizer.json"
    definition = json.loads(path.read_text(encoding="utf-8"))
    definition["added_tokens"].append(
        {**definition["added_tokens"][-1], "id": 9999, "content": "<x>"}
    )
    path.write_text(json.dumps(definition), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match="ids up to 9999.*use the tokenizer.json of this model"
    ):
        OfflineEngine(folder)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        OfflineEngine(folder)


def test_batch_invariance_from_the_environment(golden_model, monkeypatch):
    monkeypatch.setenv("DEEPINFER_BATCH_INVARIANT", "1")
    with OfflineEngine(golden_model, max_num_seqs=1) as engine:
        assert engine.engine_config.batch_invariant


def test_public_names():
    for name in deepinfer.__all__:
        assert getattr(deepinfer, name) is not None


@pytest.mark.parametrize("sizes", [{"num_blocks": 10**9}, {"max_num_seqs": 10**6}])
def test_caches_that_no_memory_holds_are_refused_with_their_size(sizes):
    with pytest.raises(ConfigError, match=r"need [\d,.]+ GiB, which cpu does not have"):
        OfflineEngine(**sizes)
