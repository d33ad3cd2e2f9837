"""The command line: verbs, settings, readers, writers, journal, progress and reports."""
