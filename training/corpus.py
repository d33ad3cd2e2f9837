"""Builds the training corpus: token arrays of documents, each from BOS to EOS.

    python -m training.corpus text training/data/text sample.txt          # for the tokenizer
    python -m training.corpus tokens training/data/text training/data --num-tokens 20000000

``tokens`` writes ``part-N.npy.xz``, ``long.npy.xz``, and their held-out ``valid`` forms (uint16).  About 75 % is written by the generators of
this folder, 25 % comes from the fetched texts.  Everything follows from ``--seed``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from training.conversations import conversation, long_dialogue, tool_dialogue
from training.corpus_files import TOKEN_MAP, save_tokens
from training.dialogue import Answer, Dialogue, DocumentEncoder, PromptRenderer, answer_text
from training.grammar import Writer
from training.stories import story
from training.tokenizer import SPECIAL_TOKENS

from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer

TOKENIZER = Path(__file__).parent.parent / "recipes" / "tiny" / "tokenizer.json"
PART_TOKENS = 5_000_000
TEXT_SHARES = {"bible": 0.35, "speeches": 0.2, "definitions": 0.45}


class NaturalText:
    """The fetched texts; every document is drawn at random."""

    def __init__(self, folder: Path) -> None:
        self.passages = {
            name: (folder / f"{name}.txt").read_text(encoding="utf-8").split("\n")
            for name in ("bible", "speeches")
        }
        lines = (folder / "definitions.tsv").read_text(encoding="utf-8").split("\n")
        self.definitions = [line.split("\t") for line in lines]

    def draw(self, writer: Writer) -> str | Dialogue:
        name = writer.random.choices(list(TEXT_SHARES), list(TEXT_SHARES.values()))[0]
        if name != "definitions":
            return writer.pick(self.passages[name])
        chosen = [writer.pick(self.definitions) for _ in range(6)]
        if writer.chance(0.5):
            return "\n".join(defined(writer, *entry) for entry in chosen)
        word, kind, meaning, *_ = chosen[0]
        noun = "verb" if kind == "verb" else kind
        question = writer.write(
            f'[what does the {noun} "{word}" mean?|define "{word}".|what is the meaning of "{word}"?]'
        )
        answer = Answer(
            content=f"{meaning[0].upper()}{meaning[1:]}.", reasoning=f"{word} is a {kind}."
        )
        effort = "default" if writer.chance(0.1) else None
        return Dialogue(
            messages=[{"role": "user", "content": question}], answer=answer, effort=effort
        )


def defined(writer: Writer, word: str, kind: str, meaning: str, *examples: str) -> str:
    text = f"{word} ({kind}): {meaning}."
    return (
        text + f" {examples[0][0].upper()}{examples[0][1:]}." if examples and examples[0] else text
    )


def document(writer: Writer, natural: NaturalText) -> str | Dialogue:
    """One random document.  Shares are of documents; in tokens it comes to about 75:25."""
    kind = writer.random.random()
    if kind < 0.20:
        return natural.draw(writer)
    if kind < 0.28:
        made = story(writer, num_scenes=writer.pick((0, 0, 1, 2)))
        return f"{made.title}\n\n{made.text}" if writer.chance(0.3) else made.text
    if kind < 0.34:
        return tool_dialogue(writer)
    if kind < 0.39:
        return long_dialogue(writer, int(60 * 2 ** (4.5 * writer.random.random())))
    return conversation(writer)


def long_document(writer: Writer, natural: NaturalText) -> str | Dialogue:
    """One of about 1,500 to 7,000 tokens."""
    num_tokens = int(1500 * 2 ** (2.1 * writer.random.random()))
    if writer.chance(0.8):
        return long_dialogue(writer, num_tokens)
    start = writer.random.randrange(len(natural.passages["bible"]) - 30)
    return "\n".join(natural.passages["bible"][start : start + num_tokens // 330])


def token_stream(job: tuple[Path, str, int]) -> np.ndarray:
    """[about num_tokens] uint16 documents of one seed."""
    folder, seed, num_tokens = job
    writer, natural, encoder = Writer(seed), NaturalText(folder), DocumentEncoder(str(TOKENIZER))
    make = long_document if "long" in seed else document
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        made = make(writer, natural)
        tokens += encoder.text(made) if isinstance(made, str) else encoder.dialogue(made)
    return np.array(tokens, dtype=np.uint16)


def sample_lines(folder: Path, seed: str, num_characters: int) -> Iterator[str]:
    """Plain text with the corpus's mix, for the tokenizer."""
    writer, natural, encoder = Writer(seed), NaturalText(folder), PromptRenderer()
    while num_characters > 0:
        made = document(writer, natural)
        if isinstance(made, Dialogue):
            made = without_markers(encoder.prompt_text(made) + answer_text(made))
        num_characters -= len(made)
        yield made


def without_markers(text: str) -> str:
    for marker in SPECIAL_TOKENS:
        text = text.replace(marker, "")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("text", "tokens"))
    parser.add_argument("texts", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", default="deepinfer")
    parser.add_argument("--num-tokens", type=int, default=PART_TOKENS)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.what == "text":
        lines = sample_lines(options.texts, options.seed + "/tokenizer", 20_000_000)
        options.output.write_text("\n".join(lines), encoding="utf-8")
        return
    options.output.mkdir(parents=True, exist_ok=True)
    np.save(options.output / TOKEN_MAP, token_compression(Tokenizer.from_file(TOKENIZER)))
    num_parts = max(1, round(options.num_tokens / PART_TOKENS))
    share = options.num_tokens // num_parts
    sizes = {"valid": 200_000, "valid-long": 200_000, "long": options.num_tokens // 6}
    sizes |= {f"part-{i}": share for i in range(num_parts)}
    jobs = [(options.texts, f"{options.seed}/{name}", size) for name, size in sizes.items()]
    with Pool(options.processes) as pool:
        for name, tokens in zip(sizes, pool.imap(token_stream, jobs), strict=True):
            save_tokens(options.output / f"{name}.npy.xz", tokens)


if __name__ == "__main__":
    main()
