"""The ``deepinfer`` program: registers its verbs, and turns errors into one line and an exit
code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepinfer import __version__
from deepinfer.errors import DeepInferError

from .bench.app import add_bench_verbs
from .build.verb import add_build_verb
from .doctor.flags import add_doctor
from .exit_code import exit_code
from .helptext import Command, Group, UsageError
from .plan.app import add_plan
from .report.app import add_report
from .run.app import add_run_verbs
from .run.run_app import add_run
from .settings.layers import resolve
from .settings.settings import Settings
from .stdio import complain, hold_standard_descriptors, show_every_character

if TYPE_CHECKING:  # help must not import what a run needs
    from .run.job import Engine, MakeEngine

_USAGE = 2
_CLOSED_PIPE = 141
_SHOWN_NAME = 200  # characters of a file name

# What to do instead, by the beginning of a usage error.
_ADVICE = {
    "deepinfer run: no such option: --dry-run": "deepinfer plan says what a run would do",
    "deepinfer run: got unexpected extra argument": "join the inputs: cat A B | deepinfer run -",
    "deepinfer plan: got unexpected extra argument": "join the inputs: cat A B | deepinfer plan -",
    "deepinfer: no such command 'resume'": "to resume a run, give its command again",
}

Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Settings file; default ./deepinfer.yaml."),
]


def load_engine(settings: Settings) -> Engine:
    """The real engine.  Imported here: help and checks must not import torch."""
    from deepinfer import OfflineEngine

    from .settings.engine_arguments import engine_arguments

    return OfflineEngine(settings.model, **engine_arguments(settings))


@cache
def make_program(make_engine: MakeEngine = load_engine) -> Any:
    """The command with its verbs; tests pass another engine.

    Made once per process, since it takes longer than many verbs.
    """
    app = typer.Typer(cls=Group, help=_HELP, rich_markup_mode=None, context_settings=_CONTEXT)
    config = typer.Typer(cls=Group, help=_CONFIG_HELP)
    app.add_typer(config, name="config")

    @app.callback(invoke_without_command=True)
    def deepinfer(
        context: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    ) -> None:
        if version:
            print(f"deepinfer {__version__}")
        elif context.invoked_subcommand is None:
            print(context.get_help())

    add_run(app, make_engine)
    add_run_verbs(app)
    add_plan(app)
    add_doctor(app)
    add_report(app)
    add_bench_verbs(app, make_engine)
    add_build_verb(app)
    _add_config_verbs(config)
    return typer.main.get_command(app)


def _add_config_verbs(config: typer.Typer) -> None:
    @config.command("show", cls=Command)
    def show_verb(
        origin: Annotated[
            bool, typer.Option("--origin", help="Show where each value comes from.")
        ] = False,
        config: Config = None,
        json: Annotated[bool, typer.Option("--json", help="JSON instead of YAML.")] = False,
    ) -> None:
        """Print every setting with the value that a run would use.

        Examples:
          deepinfer config show
          deepinfer config show --origin
          DEEPINFER_TOP_P=0.9 deepinfer config show --json | jq .top_p
        """
        from .settings.config import show

        show(resolve({}, config=config), origin=origin, as_json=json)

    @config.command("init", cls=Command)
    def init_verb(
        path: Annotated[Path, typer.Argument(metavar="[FILE]")] = Path("deepinfer.yaml"),
        force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    ) -> None:
        """Write a settings file with every key, its default and a comment.

        Examples:
          deepinfer config init
          deepinfer config init - | less
          deepinfer config init night.yaml && deepinfer run in.jsonl --config night.yaml
        """
        from .settings.config import init

        init(path, force=force)


def main(arguments: Sequence[str] | None = None, make_engine: MakeEngine = load_engine) -> int:
    """Run the program and return its exit code; ``deepinfer`` exits with it."""
    hold_standard_descriptors()
    show_every_character()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        program = make_program(make_engine)
        result = program(given, prog_name="deepinfer", standalone_mode=False, obj=given)
        if sys.stdout is not None:
            sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except UsageError as error:
        return _fail(_usage_message(error), _USAGE)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer has caught it first
            return _reader_is_gone()
        raise
    except BrokenPipeError:
        return _reader_is_gone()
    except Exception as error:
        if "--debug" in given:
            raise
        return _fail(_message(error), exit_code(error))


def _reader_is_gone() -> int:
    # Otherwise Python reports the broken pipe again when it closes stdout.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return _CLOSED_PIPE


def _message(error: Exception) -> str:
    """One line: the error, and the notes that the run added to it."""
    if isinstance(error, DeepInferError):
        what = str(error)
    elif isinstance(error, OSError) and error.strerror:
        # A file that cannot be moved: it is the place for it that has to be looked at.
        name = str(error.filename2 or error.filename or "")
        shown = name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}…"
        what = error.strerror.lower() + (f": {shown}" if shown else "")
    else:
        what = f"{type(error).__name__}: {error} (--debug shows where)"
    return " ".join("; ".join([what, *getattr(error, "__notes__", ())]).split())


def _usage_message(error: Any) -> str:
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    message = message[:1].lower() + message[1:].replace(". Did you mean", "; did you mean")
    command = error.ctx.command_path if error.ctx is not None else "deepinfer"
    asked = f"{command}: {message}"
    message += next(
        (f"; {advice}" for begin, advice in _ADVICE.items() if asked.startswith(begin)), ""
    )
    return f"{message}{' See' if message.endswith('?') else '; see'} {command} --help"


def _fail(message: str, exit_code: int) -> int:
    complain(message)
    return exit_code


_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}

_HELP = """\
Answer files of prompts with DeepSeek-V4.1-Flash on this machine.

Examples:
  deepinfer run prompts.jsonl
  deepinfer run prompts.parquet -o answers.parquet --model /models/v4.1
  deepinfer plan prompts.jsonl
  deepinfer report prompts.out.jsonl
  deepinfer doctor
  deepinfer run --help

Shell completion: deepinfer --install-completion
"""

_CONFIG_HELP = """\
Show the settings in effect, or write a file with all of them.

Examples:
  deepinfer config init
  deepinfer config show --origin
"""


if __name__ == "__main__":
    sys.exit(main())
