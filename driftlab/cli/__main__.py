"""``python -m driftlab.cli``: the same commands without an installed script."""

from driftlab.cli import main

main()
