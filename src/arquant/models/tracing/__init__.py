"""Find the layers of a network that can be quantized, with their shapes and costs."""
