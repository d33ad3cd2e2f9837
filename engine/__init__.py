"""Token ids in, token ids out: requests, scheduler, caches, workers.  Knows no text, no files."""
