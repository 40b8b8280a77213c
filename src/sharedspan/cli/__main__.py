"""``sharedspan`` and ``python -m sharedspan.cli``."""


def run() -> None:
    """Run the command that was typed; Ctrl-C ends it with exit code 130, also during imports."""
    try:
        from sharedspan.cli.commands import main

        main()
    except KeyboardInterrupt:
        from sharedspan.cli.interrupt import exit_interrupted

        exit_interrupted()


if __name__ == "__main__":
    run()
