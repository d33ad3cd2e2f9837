"""Durable output: journal, working folder, final files, merging and retrying."""
