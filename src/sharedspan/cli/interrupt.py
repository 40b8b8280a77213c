"""The end of a command after Ctrl-C. It imports nothing that may be half imported by then."""

import signal
import sys
from typing import NoReturn


def exit_interrupted(message: str = "Stopped.") -> NoReturn:
    """Exit with code 130 after a message; a second Ctrl-C meanwhile is ignored.

    CPython notes a KeyboardInterrupt that leaves ``exec`` or ``eval`` of a string, which imports
    use to make named tuples, and then ends the process by the signal, whatever becomes of the
    exception: the exit code would be -2. It forgets the note when it next executes a string.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(f"\n{message}", file=sys.stderr, flush=True)
    exec("")
    sys.exit(130)
