"""Memory planning: what fits on a device and on its host."""
