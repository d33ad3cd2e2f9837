"""``ConstraintQueue``: rows that wait until their constraint is compiled."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait

from deepinfer.errors import ConfigError, EngineError, RowError
from deepinfer.recipes.constraints.compiler import CompiledConstraint, ConstraintCompiler
from deepinfer.recipes.constraints.spec import ConstraintSpec
from deepinfer.recipes.constraints.vocabulary import ConstraintVocabulary
from deepinfer.recipes.tokenizer import Tokenizer

from .assemble import RowInFlight


class ConstraintQueue:
    """Threads compile constraints while the engine runs other rows.  Nothing is loaded or started
    before the first constraint."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._compiler: ConstraintCompiler | None = None
        self._waiting: dict[Future[CompiledConstraint], list[RowInFlight]] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """Number of answers of the waiting rows."""
        return sum(len(row.seeds) for rows in self._waiting.values() for row in rows)

    def check(self, spec: ConstraintSpec) -> None:
        """Compile the constraint of a whole run.  Raises: ConfigError if that fails."""
        try:
            self._open_compiler().compile(spec)
        except RowError as error:
            raise ConfigError(f"{error.kind}: {error}") from error

    def put(self, row: RowInFlight, spec: ConstraintSpec) -> None:
        """Let ``row`` wait for its constraint."""
        self._waiting.setdefault(self._open_compiler().submit(spec), []).append(row)

    def take(self, *, patient: bool) -> list[tuple[RowInFlight, CompiledConstraint | RowError]]:
        """Remove and return the rows that are ready; ``patient`` waits for one if none is.

        A constraint that cannot be compiled is returned as its error.
        """
        ready = [future for future in self._waiting if future.done()]
        if patient and not ready and self._waiting:
            done = wait(self._waiting, return_when=FIRST_COMPLETED).done
            ready = [future for future in self._waiting if future in done]
        return [(row, _outcome(future)) for future in ready for row in self._waiting.pop(future)]

    def clear(self) -> None:
        """Drop the waiting rows."""
        self._waiting.clear()

    def close(self) -> None:
        """Drop the rows and stop the threads."""
        self.clear()
        self._is_closed = True
        if self._compiler is not None:
            self._compiler.close()

    def _open_compiler(self) -> ConstraintCompiler:
        if self._is_closed:
            raise EngineError("the engine was closed while this stream was open")
        if self._compiler is None:
            vocabulary = ConstraintVocabulary(self._tokenizer, self._vocab_size)
            self._compiler = ConstraintCompiler(vocabulary)
        return self._compiler


def _outcome(future: Future[CompiledConstraint]) -> CompiledConstraint | RowError:
    try:
        return future.result()
    except RowError as error:
        return error
