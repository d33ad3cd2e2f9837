"""Measures what a machine does with the model, and works out what a deployment could do."""
