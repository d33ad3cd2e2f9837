"""Settings: defined once, read from four layers."""
