"""`python -m flashback`: the command line."""

from flashback.cli import main

if __name__ == "__main__":
    main()
