"""Settings: defined once, given in four layers."""
