"""The DeepSeek-V4.1 text model: configuration, layers, forward pass over packed caches."""
