"""The child process of ``trial``: compiles grammars where a crash or an endless loop is harmless.

Run as a script; imports nothing of deepinfer.  For each line of JSON on stdin (grammar, limits) it
writes one line to stdout: the error, or the empty string.  Arguments: memory limit in bytes,
process id of the parent.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import threading
from functools import cache
from typing import Any

import llguidance

# Recursion that needs more would endanger the main process, whose threads have stacks of 8 MiB.
_STACK_BYTES = 2**20
_NUM_TRIAL_STEPS = 64
_END = 256


class _Bytes:
    """A vocabulary of the 256 bytes and an end token."""

    eos_token_id = _END
    bos_token_id = None
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    special_token_ids = [_END]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def byte_tokenizer() -> Any:
    """An llguidance tokenizer for bytes: the id of a byte is its value."""
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), slices=[])


def try_grammar(grammar: str, limits: dict[str, Any]) -> str:
    """Compile, and take some random steps.  Returns the error, or the empty string."""
    matcher = llguidance.LLMatcher(
        byte_tokenizer(), grammar, log_level=0, limits=llguidance.LLParserLimits(**limits)
    )
    choice = random.Random(0)
    for _ in range(_NUM_TRIAL_STEPS):
        if matcher.is_error() or matcher.is_stopped():
            break
        mask = matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
        if not allowed:
            break
        matcher.consume_token(choice.choice(allowed))
    return str(matcher.get_error()) if matcher.is_error() else ""


def _serve(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        question = json.loads(line)
        error = try_grammar(question["grammar"], question["limits"])
        sys.stdout.write(json.dumps(error) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    os.nice(5)
    threading.stack_size(_STACK_BYTES)
    server = threading.Thread(target=_serve, args=(int(sys.argv[1]),))
    server.start()
    parent = int(sys.argv[2])
    while server.is_alive():
        server.join(0.5)
        if os.getppid() != parent:  # the parent was killed, which must also end a compilation
            os._exit(1)
