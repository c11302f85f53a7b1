"""The commands as Python functions: `arquant.certify` and `arquant certify` are the same thing."""
