"""Tool calls: the model asks, this program looks it up, the model answers.

Run: python examples/tools.py
"""

import json

from deepinfer import OfflineEngine, SamplingParams


def get_weather(city: str) -> str:
    return json.dumps({"weather": "sunny", "temperature": 21, "city": city})


city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
about = {"name": "get_weather", "description": "Current weather of a city", "parameters": city}
row = {
    "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
    "tools": [{"type": "function", "function": about}],
    "thinking": "off",
}

with OfflineEngine() as engine:
    params = SamplingParams(temperature=0, max_tokens=100)
    [asked] = engine.generate(row, params)
    [call] = asked.samples[0].tool_calls
    print("the model calls", call.name, call.arguments)
    request = {"name": call.name, "arguments": call.arguments}
    turn = {"id": call.id, "type": "function", "function": request}
    found = get_weather(**json.loads(call.arguments))
    row["messages"] += [
        {"role": "assistant", "content": "", "tool_calls": [turn]},
        {"role": "tool", "tool_call_id": call.id, "content": found},
    ]
    [answered] = engine.generate(row, params)
    print("and answers:", answered.text)
