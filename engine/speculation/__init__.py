"""Drafts: how many, which of them count, and what they were worth."""
