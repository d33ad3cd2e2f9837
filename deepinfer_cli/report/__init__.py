"""Reports of runs, and the pages made from them."""
