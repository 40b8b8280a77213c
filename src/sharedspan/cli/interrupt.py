"""Ctrl-C on the command line. This file imports nothing that may be half imported by then."""

import _signal  # type: ignore[import-not-found]  # signal itself imports enum and more
import _thread
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_came = False


def heed_interrupts() -> None:
    """Note from now on that Ctrl-C came, as the KeyboardInterrupt may get lost.

    A class that is being made turns it into a RuntimeError, a failed import into an ImportError,
    and callbacks of the garbage collector drop it. If Ctrl-C is ignored, as it is in background
    jobs of scripts, it stays so.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _interrupt)
        sys.unraisablehook = _raise_again


def interrupt_came() -> bool:
    """Whether an error is a consequence of Ctrl-C, whatever its type."""
    return _came


def ignore_interrupts() -> None:
    """From now on, there is nothing left to stop."""
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)


def exit_interrupted(message: str = "Stopped.") -> "NoReturn":
    """Exit with code 130 after a message; a second Ctrl-C meanwhile is ignored.

    CPython notes a KeyboardInterrupt that leaves ``exec`` or ``eval`` of a string, which imports
    use to make named tuples, and then ends the process by the signal, whatever becomes of the
    exception: the exit code would be -2. It forgets the note when it next executes a string.
    """
    ignore_interrupts()
    print(f"\n{message}", file=sys.stderr, flush=True)
    exec("")
    sys.exit(130)


def _interrupt(number: int, frame: "Any") -> None:
    global _came
    _came = True
    raise KeyboardInterrupt


def _raise_again(dropped: "Any") -> None:
    """Raise a KeyboardInterrupt that a callback dropped once more, when the callback has ended."""
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return

    def soon() -> None:
        time.sleep(0.01)
        _thread.interrupt_main()

    _thread.start_new_thread(soon, ())
