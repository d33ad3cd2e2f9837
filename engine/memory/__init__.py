"""What fits into the memory of a device."""
