"""Shell scripts, read and evaluated without running anything: what they would launch, with which arguments.

:func:`projector.intake.shell.evaluate.commands` is the door; a script's values stay text throughout, and what a script
cannot say by itself (a variable that nobody sets, the output of a command) travels in that text as a mark that names it.
"""
