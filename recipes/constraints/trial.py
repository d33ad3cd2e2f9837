"""Tries a grammar in a child process, which can be killed, unlike a thread inside llguidance."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

from deepinfer.errors import RowError

from .limits import ConstraintLimits

_SCRIPT = Path(__file__).with_name("trial_process.py")


class Trial:
    """One child process, used by one thread at a time; restarted after it was killed."""

    def __init__(self, limits: ConstraintLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def check(self, constraint_kind: str, grammar: str) -> None:
        """Check that ``grammar`` compiles within the limits.

        Raises: RowError ``constraint_too_complex`` (time, memory, size, stack), or with the error
        and position reported by llguidance; CancelledError after ``close``.
        """
        question = {"grammar": grammar, "limits": self._limits.for_llguidance()}
        answer = self._ask(json.dumps(question).encode() + b"\n")
        if answer is None:
            self.release()
            if self._is_closed:
                raise CancelledError
            raise RowError(
                "constraint_too_complex",
                f"{constraint_kind}: does not compile within "
                f"{self._limits.compile_timeout_s:g} s, {self._limits.trial_memory_bytes >> 20} "
                "MiB and a small stack; use fewer alternatives, smaller repetitions, fewer "
                "patterns at one place or shorter chains of references",
            )
        error = json.loads(answer)
        if error:
            raise compile_error(constraint_kind, error)

    @property
    def process_id(self) -> int | None:
        """Process id of the child process, None if none is running."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        """Kill the child process permanently.  From any thread; a waiting ``check`` returns."""
        with self._lock:
            self._is_closed = True
            if self._process:
                self._process.kill()

    def release(self) -> None:
        """Kill the child process and free its resources.  Only from the thread that uses it."""
        with self._lock:
            process, self._process = self._process, None
        if process:
            process.kill()
            # A request that the process has not read is still in the pipe's buffer.
            with contextlib.suppress(BrokenPipeError), process:
                pass

    def _ask(self, question: bytes) -> bytes | None:
        """The reply line; None if the child died or timed out."""
        if self._process and self._process.poll() is not None:
            self.release()  # it died for another reason than this request
        process = self._running()
        assert process.stdin and process.stdout
        deadline = time.monotonic() + self._limits.compile_timeout_s
        answer = b""
        try:
            process.stdin.write(question)
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while not answer.endswith(b"\n"):
                    if not selector.select(max(0.0, deadline - time.monotonic())):
                        return None
                    part = os.read(process.stdout.fileno(), 65536)
                    if not part:
                        return None
                    answer += part
        except BrokenPipeError:
            return None
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_closed:
                raise CancelledError
            memory_bytes, parent = self._limits.trial_memory_bytes, os.getpid()
            self._process = self._process or subprocess.Popen(
                [sys.executable, "-P", str(_SCRIPT), str(memory_bytes), str(parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C must reach only the main process
            )
            return self._process


_TOO_COMPLEX = ("too large", "too big", "fuel", "limit", "too many", "too complex", "too deeply")
_AMBIGUOUS = "items; max is"
_UNDECIDED = "unable to determine if regex is empty"
_OVERLAPPING_ONE_OF = "oneof constraints are not supported"
_UNSUPPORTED = (
    "unimplemented keys",
    _OVERLAPPING_ONE_OF,
    "only supported when",
    "not disjoint",
    "failed to generate regex",
)
# Reported for what is valid in a schema but cannot be enforced; invalid as a regex constraint.
_NO_PATTERN = ("look-around", "lookarounds", "backreferences")
_ANCHOR = re.compile(r"lookarounds not supported yet; (\w+) in regex")
_NO_TEXT = "noextensionbias"
_INVALID = {"json_object": "invalid_schema", "json_schema": "invalid_schema"} | {
    "regex": "invalid_regex"
}


def compile_error(constraint_kind: str, message: str) -> RowError:
    """The RowError for an error that llguidance reports for a constraint of this kind."""
    lowered = message.lower()
    kind = _INVALID.get(constraint_kind, "invalid_grammar")
    is_in_schema = kind == "invalid_schema" and any(words in lowered for words in _NO_PATTERN)
    if is_in_schema or any(words in lowered for words in _UNSUPPORTED):
        kind = "unsupported_keyword"
    elif any(words in lowered for words in (_UNDECIDED, _AMBIGUOUS, *_TOO_COMPLEX)):
        kind = "constraint_too_complex"
    reason = _one_line(message.replace("<non-verbose/>", ""))[:500]
    anchor = _ANCHOR.search(message)
    if anchor:
        reason = f"an anchor or word boundary inside it is not supported ({anchor[1]})"
    if is_in_schema:
        reason = f"pattern: {reason}"
    elif _NO_TEXT in lowered:
        reason = "it matches no text at all, or refers to itself endlessly"
    elif _AMBIGUOUS in lowered:
        reason = (
            "it is too ambiguous: the same text can be parsed in too many ways; avoid nested "
            "repetitions, or use smaller ones"
        )
    elif _OVERLAPPING_ONE_OF in lowered:
        reason = (
            "oneOf: its branches are not provably exclusive; use anyOf, or give each branch a "
            "required property with a const of its own"
        )
    return RowError(kind, f"{constraint_kind}: {reason}")


# A numbered line of the grammar, and carets below the position.
_PICTURE = re.compile(r"^ *(\d+ \|.*|\^+) *$")


def _one_line(message: str) -> str:
    """The message without the lines that picture the position: for a regular expression, the error
    and the part that precedes it; else all other lines joined."""
    lines = message.strip().splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    carets = next((i for i, line in enumerate(lines) if line.strip(" ^") == "" and "^" in line), 0)
    if errors and carets:
        shown, place = lines[carets - 1], lines[carets].index("^")
        before = shown[:place].strip()
        where = f"after {before!r}" if before else "at its beginning"
        return f"{errors[0]} ({where})"
    return " ".join(" ".join(line for line in lines if not _PICTURE.match(line)).split())
