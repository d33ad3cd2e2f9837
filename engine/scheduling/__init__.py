"""Scheduling: which requests run in the next step.  Policy only, no tensors."""
