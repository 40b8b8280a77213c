"""``sharedspan`` and ``python -m sharedspan.cli``."""


def run() -> None:
    """Run the command that was typed; Ctrl-C ends it with exit code 130, also during imports."""
    try:
        from sharedspan.cli.interrupt import heed_interrupts

        heed_interrupts()
        from sharedspan.cli.commands import main

        main()
    except (KeyboardInterrupt, Exception) as error:
        from sharedspan.cli.interrupt import exit_interrupted, interrupt_came

        if isinstance(error, KeyboardInterrupt) or interrupt_came():
            exit_interrupted()
        raise
    finally:
        from sharedspan.cli.interrupt import ignore_interrupts

        ignore_interrupts()


if __name__ == "__main__":
    run()
