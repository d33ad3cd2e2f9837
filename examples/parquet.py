"""A Parquet table in, the same table with answers out.

Run: python examples/parquet.py
"""

import subprocess

import pyarrow as pa
import pyarrow.parquet as pq

questions = ["What is the capital of Italy?", "How many legs does a spider have?", "Who are you?"]
pq.write_table(pa.table({"question": questions, "topic": ["map", "animals", "me"]}), "qa.parquet")

command = "deepinfer run qa.parquet -o answers.parquet --force --quiet --temperature 0"
# The prompt is in a column of another name; every column is copied to the answers.
subprocess.run([*command.split(), "--map", "prompt=question", "--carry", "*"], check=True)

answers = pq.read_table("answers.parquet", columns=["id", "content", "finish_reason", "input"])
for row in answers.to_pylist():
    print(row["id"], row["content"], row["finish_reason"], row["input"])
