"""`python -m holdfast.sim`: the same as `holdfast sim`."""

from holdfast.cli.sim import app

if __name__ == "__main__":
    app()
