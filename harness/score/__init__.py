"""Scores rows: error, ranking, drift, gates, causes. Pure functions of rows."""
