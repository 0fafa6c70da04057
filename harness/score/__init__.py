"""What rows say: error, ranking, drift, gates, causes. Pure functions of rows."""
