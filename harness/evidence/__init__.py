"""Measured runs and where they come from: files, logs, tables, suites; whether their figures can be true."""
