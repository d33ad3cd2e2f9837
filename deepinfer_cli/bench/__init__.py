"""``deepinfer bench``: the verb, its result file, page, plots and comparisons."""
