"""Runs Python code in forks of a process that has imported torch and Triton: each fresh process
would take three seconds for that.

A line of standard input is one request, in JSON: ``code``, ``arguments``, ``environment`` (all of
it), and ``output`` and ``errors``, the files that standard output and standard error become.  The
answer is a line with the exit code.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, NoReturn

import torch  # noqa: F401
import triton  # noqa: F401


def _run(request: dict[str, Any]) -> NoReturn:
    for number, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    code = 1
    try:
        exec(compile(request["code"], "<code>", "exec"), {"__name__": "__main__"})
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
