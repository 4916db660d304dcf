"""`python -m plough` is the `plough` command."""

from plough.cli.main import entry

if __name__ == "__main__":
    entry()
