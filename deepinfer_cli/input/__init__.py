"""Input files to rows."""
