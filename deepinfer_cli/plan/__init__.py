"""``deepinfer plan``: what a run would take, before it runs."""
