"""The command ``replaybank``, also as ``python -m replaybank``."""

from __future__ import annotations

import sys

_NEEDED = frozenset({"typer", "rich", "tqdm"})


def main() -> int:
    """Run the command line; the exit status is returned."""
    try:
        from replaybank.cli import run
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        print(
            f"replaybank: error: the command line needs {error.name}: pip install 'replaybank[openx]'",
            file=sys.stderr,
        )
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
