"""``deepinfer bench``: the verb, its file, its page, its pictures and the comparison of two."""
