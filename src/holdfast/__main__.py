"""`python -m holdfast` is the command `holdfast`, where no script is on the path."""

from holdfast.cli.main import entry

if __name__ == "__main__":
    entry()
