"""From finished rows to files that survive anything."""
