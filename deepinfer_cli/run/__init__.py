"""``deepinfer run`` and what watches over it."""
