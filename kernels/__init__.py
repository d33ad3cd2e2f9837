"""Operations on tensors: reference, Triton, dispatch.  Knows nothing of requests, text or files."""
