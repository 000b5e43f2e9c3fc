"""The command ``replaybank``, also as ``python -m replaybank``."""

from __future__ import annotations

import os
import sys

_NEEDED = frozenset({"typer", "rich", "tqdm"})


def main() -> int:
    """Run the command line; the exit status is returned."""
    # Read once, when torch is imported. Threads that spin while they wait ruin each other on shared cores:
    # training is three times as fast without.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
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
    except KeyboardInterrupt:
        print("replaybank: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
