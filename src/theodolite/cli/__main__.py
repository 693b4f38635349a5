"""``python -m theodolite.cli``, for where the command is not installed."""

from theodolite.cli.app import main

if __name__ == "__main__":
    main()
