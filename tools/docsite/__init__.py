"""What the documentation is filled with and checked against; ``tools/docs.py`` is its command."""
