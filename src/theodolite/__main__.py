"""``python -m theodolite``, for environments without the installed command."""

from theodolite.cli.app import main

if __name__ == "__main__":
    main()
