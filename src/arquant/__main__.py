"""`python -m arquant`."""

from arquant.cli import entry

entry()
