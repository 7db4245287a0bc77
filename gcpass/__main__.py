"""``python -m gcpass``: the command line, where its script is not on the path."""

from gcpass._cli import main

main()
