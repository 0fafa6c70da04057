"""Reads measured runs from files, logs, tables and suites, and checks whether their figures can be true."""
