"""The prefill and decode workers, and the forward passes and graphs that they launch."""
