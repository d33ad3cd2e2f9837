"""Answers that a JSON Schema allows, whatever is asked and whatever the model would rather say.

Run: python examples/json_schema.py
"""

import json

from deepinfer import OfflineEngine, SamplingParams

schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 20},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
texts = ["Tom is 9 years old and lives in Paris.", "In Oslo lives Anna, who is 31."]

with OfflineEngine() as engine:
    prompts = [f"Write this as JSON: {text}" for text in texts]
    params = SamplingParams(temperature=0, max_tokens=100)
    for out in engine.generate(prompts, params, constraint={"response_format": form}):
        print(out.samples[0].constraint, json.loads(out.text))
