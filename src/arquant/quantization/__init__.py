"""Policies, what they cost, budgets, quantizers, and the files that hold quantized networks."""
