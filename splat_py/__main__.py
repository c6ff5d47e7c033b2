"""`python -m splat_py`: the command `splat`, if it is not on the path."""

from splat_py.commands.main import main

main()
