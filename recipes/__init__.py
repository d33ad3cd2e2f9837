"""Between text and token ids: row formats, prompt encoding, answer parsing, constraints."""
