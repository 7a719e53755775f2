"""`python -m compensate` is the command line."""

from compensate.cli import main

if __name__ == "__main__":
    main()
