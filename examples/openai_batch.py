"""An OpenAI Batch file in, an OpenAI Batch output file out.

Run: python examples/openai_batch.py examples/openai_batch.jsonl answers.jsonl
"""

import json
import subprocess
import sys
from pathlib import Path

source, target = Path(sys.argv[1]), Path(sys.argv[2])
rows = target.with_suffix(".rows.jsonl")
done = subprocess.run(["deepinfer", "run", source, "-o", rows, "--quiet"])
if done.returncode not in (0, 3):  # 3: some rows failed, and have a line of their own
    sys.exit(done.returncode)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


answers = []
for row in lines(rows):
    message = {"role": "assistant", "content": row["content"]}
    message |= {key: row[key] for key in ("tool_calls",) if key in row}
    choice = {"index": 0, "message": message, "finish_reason": row["finish_reason"]}
    body = {"choices": [choice], "usage": row["usage"]}
    response = {"status_code": 200, "body": body}
    answers.append({"custom_id": row["id"], "response": response, "error": None})
errors = rows.with_name(rows.name + ".errors.jsonl")
for row in lines(errors) if errors.exists() else []:
    answers.append({"custom_id": row["id"], "response": None, "error": row["error"]})
target.write_text("".join(json.dumps(answer) + "\n" for answer in answers), encoding="utf-8")
