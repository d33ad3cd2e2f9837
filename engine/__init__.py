"""Token ids in, token ids out: requests, scheduler, caches, workers.  No text, no files."""
