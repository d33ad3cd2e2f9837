"""Reports for people: tables of words, charts, and the Markdown and HTML made of them."""
