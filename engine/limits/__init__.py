"""Lower bounds of step times on a device, and estimates of run times."""
