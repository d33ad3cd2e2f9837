"""Many questions under one long system prompt: its tokens are computed once.

Run: python examples/shared_prefix.py
"""

from deepinfer import OfflineEngine, SamplingParams

system = "You are a friendly owl. You answer in one short sentence, kindly, and never lie. " * 40
questions = ["Who are you?", "What color is the sky?", "What is 6 times 7?", "Do fish swim?"]


def row(question: str) -> dict:
    turns = [("system", system), ("user", question)]
    return {"messages": [{"role": who, "content": text} for who, text in turns], "thinking": "off"}


with OfflineEngine() as engine:
    params = SamplingParams(temperature=0, max_tokens=24)
    engine.generate(row("Hello!"), params)  # so that all of the next ones find it
    outputs = engine.generate([row(question) for question in questions], params)
    for question, out in zip(questions, outputs, strict=True):
        usage = out.usage
        print(f"{usage.cached_tokens} of {usage.prompt_tokens} tokens shared:", question, out.text)
