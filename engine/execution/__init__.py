"""The two workers, and what they launch in a step."""
