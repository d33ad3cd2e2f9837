"""Answer a few prompts in Python.  Give a checkpoint folder to use another than the embedded model.

Run: python examples/offline_inference.py [MODEL]
"""

import sys

from deepinfer import OfflineEngine, SamplingParams

prompts = [
    "Tell me a short story about a brave fox.",
    "What is the capital of France?",
    {"prompt": "What is 17 plus 25?", "thinking": "low"},
]

with OfflineEngine(
    model_path=sys.argv[1] if len(sys.argv) > 1 else None,
    tensor_parallel_size=1,
    pipeline_parallel_size=1,
    enable_flash_mla=True,
    enable_speculative_dspark=True,
) as engine:
    sampling_params = SamplingParams(temperature=0.7, max_tokens=200)
    for prompt, out in zip(prompts, engine.generate(prompts, sampling_params), strict=True):
        print(f"{prompt}\n  thought: {out.reasoning}\n  answer:  {out.text or out.error}\n")
