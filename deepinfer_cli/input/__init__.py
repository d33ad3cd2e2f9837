"""Reads input files as rows."""
