"""The loop of a compiler process: one task per line on stdin, one result per line on stdout.

Compilers run in separate processes because they may abort, because Triton may be interpreted in
this one, and because other accelerators need another Triton.  A process ends when its stdin closes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def serve(work: Callable[[Json], Json]) -> None:
    """Answer each line, with an error if the work fails; what the work prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = work(json.loads(line))
        except OSError as error:
            answer = {"error": str(error), "errno": error.errno}
        except Exception as error:  # any error of a compiler
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
