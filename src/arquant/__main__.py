"""`arquant` and `python -m arquant`. Light, so that Ctrl-C is understood from the first moment, while the rest is imported."""

import os
import sys


def entry() -> None:
    """Run the command line and end with its exit code."""
    try:
        from arquant.commands.main import main

        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # `arquant --help | head`: nobody reads the rest, which must not fail at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


if __name__ == "__main__":
    entry()
