"""Makes docs/run.svg, the picture of a run: a real one, in a terminal of its own.

Run: python docs/make_recording.py   (Linux; answers examples/prompts.jsonl, about ten seconds)

What the program draws again and again is shown once, as it was when half of the rows were done.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

_DOCS = Path(__file__).parent
_WIDTH = 92
_COMMANDS = (
    "deepinfer run prompts.jsonl -o answers.jsonl",
    'jq -r \'select(.id=="capital" or .id=="sum-thinking") | .content\' answers.jsonl',
)
# A frame of the moving part ends where the next one begins to erase it.
_ERASE = re.compile(r"\r?(?:\x1b\[2K\x1b\[1A|\x1b\[1A\x1b\[2K|\x1b\[2K)+")
_CURSOR = re.compile(r"\x1b\[\?25[hl]")
# The format of the library, without the font that it would load from elsewhere.
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def recorded(command: str, folder: str) -> str:
    """What ``command`` shows on a terminal of ``_WIDTH`` columns."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        size = f"stty cols {_WIDTH} rows 30; "
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(_WIDTH)}
        os.execve("/bin/sh", ["sh", "-c", size + command], environment)
    shown = b""
    try:
        while chunk := os.read(terminal, 65536):
            shown += chunk
    except OSError:  # how a terminal says that nobody is left at the other end
        pass
    _, status = os.waitpid(process, 0)
    if status:
        sys.exit(f"{command}: exit code {os.waitstatus_to_exitcode(status)}\n{shown.decode()}")
    return _CURSOR.sub("", shown.decode()).replace("\r\n", "\n")


def still(shown: str) -> str:
    """``shown`` with one frame of its moving part, one from the middle of the run."""
    first, *frames = _ERASE.split(shown)
    if not frames:
        return shown
    *moving, last = [frame for frame in frames if frame.strip()]
    half = [frame for frame in moving if re.search(r" (?:4|5|6)\d%", Text.from_ansi(frame).plain)]
    middle = half[len(half) // 2] if half else moving[-1]
    before = first[: first.rfind("\n", 0, first.rstrip().rfind("\n")) + 1]
    return "\n".join(part.strip("\r\n") for part in (before, middle, last) if part.strip())


def main() -> None:
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(_DOCS.parent / "examples" / "prompts.jsonl", folder)
        for command in _COMMANDS:
            console.print(Text.assemble(("$ ", "green"), command))
            console.print(Text.from_ansi(still(recorded(command, folder)).rstrip()))
            console.print()
    picture = console.export_svg(title="deepinfer", theme=MONOKAI, code_format=_FORMAT)
    picture = picture.replace("Fira Code", "ui-monospace, Menlo, Consolas")
    (_DOCS / "run.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
