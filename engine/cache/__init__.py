"""The packed caches of running requests, and who holds which block."""
