"""What a run reports, and the pages made of it."""
