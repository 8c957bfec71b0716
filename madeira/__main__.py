"""`python -m madeira` is the same as the `madeira` command."""

from madeira.cli import main

main()
