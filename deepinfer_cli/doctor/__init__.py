"""``deepinfer doctor``: checks this machine, and whether a run would work on it."""
