"""Speculation: how many tokens to draft and to verify, acceptance, calibration, counters."""
