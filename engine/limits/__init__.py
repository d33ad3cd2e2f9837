"""The least time a step can take on a device, and the time it will take."""
