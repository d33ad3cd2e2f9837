"""Which requests run next: policy only, no tensors."""
