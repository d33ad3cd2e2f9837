"""Whole engines on the nodes of a Ray cluster; rows of a lost one are answered by the others.

Run: ray start --head, then python examples/ray_cluster.py   (pip install 'deepinfer-cli[cluster]')
"""

from deepinfer import OfflineEngine, SamplingParams

prompts = [f"What is {a} plus {b}?" for a in range(1, 5) for b in range(1, 5)]

with OfflineEngine(cluster="auto", num_replicas=2) as engine:
    for out in engine.generate(prompts, SamplingParams(temperature=0, max_tokens=20)):
        print(out.request_id, out.text or out.error)
