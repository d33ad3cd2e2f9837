"""A pool of compiler processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

Json = dict[str, Any]
# The folder that contains the package ``deepinfer``, installed or not.
_ROOT = Path(__file__).parents[2]


def compile_all(
    tasks: Sequence[Json],
    *,
    jobs: int,
    environment: Mapping[str, str],
    worker: str = "deepinfer.kernels.compile_worker",
    on_result: Callable[[Json, Json], None] = lambda task, result: None,
) -> list[Json]:
    """The result of each task, in order; it has ``error`` if the compiler failed or crashed.

    ``environment`` is added to that of this process.  ``on_result`` is called in other threads.  No
    compiler process outlives this one.
    """
    results: list[Json] = [{"error": "not compiled"}] * len(tasks)
    numbers = iter(range(len(tasks)))
    lock = threading.Lock()
    stopped = threading.Event()
    workers = [_Worker(worker, environment) for _ in range(max(1, min(jobs, len(tasks))))]

    def work(process: _Worker) -> None:
        while not stopped.is_set():
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            results[number] = process.answer(tasks[number])
            if not stopped.is_set():
                on_result(tasks[number], results[number])
            if results[number].get("errno"):
                stopped.set()  # an OS error, such as a full disk, would repeat

    threads = [threading.Thread(target=work, args=(process,), daemon=True) for process in workers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stopped.set()
        for process in workers:
            process.close()
    return results


class _Worker:
    """One process, started by its first task and restarted after a crash."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._module = module
        self._environment = os.environ | dict(environment)
        self._environment.pop("TRITON_INTERPRET", None)
        path = [*self._environment.get("PYTHONPATH", "").split(os.pathsep), str(_ROOT)]
        self._environment["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
        self._process: subprocess.Popen[str] | None = None
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)

    def answer(self, task: Json) -> Json:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError):
            line = ""
        if line:
            answer: Json = json.loads(line)
            return answer
        self._stop()
        return {"error": f"the compiler exited with {process.returncode}: {self._last_words()}"}

    def close(self) -> None:
        self._stop()
        self._stderr.close()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _start(self) -> subprocess.Popen[str]:
        # -P: files in the working directory must not hide packages.
        command = [sys.executable, "-P", "-m", self._module]
        self._process = subprocess.Popen(
            command, env=self._environment, text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
        )  # fmt: skip
        return self._process

    def _last_words(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "no message"
