"""Evaluates shell scripts without running anything, to learn what they would launch with which arguments.

:func:`projector.intake.shell.evaluate.commands` is the entry point. Values stay text throughout, and what a script
cannot say by itself (a variable that nobody sets, the output of a command) travels in that text as a mark that names it.
"""
