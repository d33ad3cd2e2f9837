"""``deepinfer run``: pipeline, progress, status, watchdog, early ends."""
