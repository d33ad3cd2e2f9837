"""``deepinfer plan``: predicts rows, errors, memory and time of a run."""
