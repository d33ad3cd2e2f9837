"""The loop of a compiler process: one task a line on stdin, one result a line on stdout.

Compilers run apart from the program, because they may abort, want a Triton that is not interpreted,
and are another Triton for other accelerators.  The process ends with its stdin: it outlives nobody.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def serve(work: Callable[[Json], Json]) -> None:
    """Answer each line; an error is an answer too.  What the work prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = work(json.loads(line))
        except OSError as error:
            answer = {"error": str(error), "errno": error.errno}
        except Exception as error:  # whatever a compiler may find wrong
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
