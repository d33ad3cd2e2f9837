"""The loop of a compiler process: one task per line on stdin, one result per line on stdout.

Compilers run in processes of their own, because they may abort, need a Triton that is not
interpreted, and for other accelerators another Triton.  The process exits when stdin is closed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def serve(work: Callable[[Json], Json]) -> None:
    """Answer each line; errors are answers, too.  Output of ``work`` goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = work(json.loads(line))
        except OSError as error:
            answer = {"error": str(error), "errno": error.errno}
        except Exception as error:  # compilers raise all kinds
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
