"""``deepinfer doctor``: what this machine has, and whether a run would work on it."""
