"""One text for one function: weights, attributes, hooks and code of a network, spelled for its fingerprint."""
