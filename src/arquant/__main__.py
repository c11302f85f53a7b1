"""`arquant` and `python -m arquant`. Light, so that Ctrl-C is understood from the first moment, while the rest is imported."""

import sys


def entry() -> None:
    """Run the command line and end with its exit code."""
    try:
        from arquant.commands.main import main

        code = main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    entry()
