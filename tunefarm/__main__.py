"""``python -m tunefarm`` is the command line."""

from tunefarm.cli.main import main

if __name__ == "__main__":
    main()
