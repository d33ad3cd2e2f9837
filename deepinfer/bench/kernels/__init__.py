"""The kernels of each family at the model's shapes, timed beside what the same GPU can do."""
