"""`python -m foretell`."""

from foretell.cli.main import main

main()
