"""The packed KV cache: blocks, rings, prefix hits, and who holds which block."""
