"""Which layers of a network can be quantized, with their shapes and costs."""
