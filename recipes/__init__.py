"""Text <-> token ids: row formats, prompt encoding, answer parsing, the embedded model's files."""
