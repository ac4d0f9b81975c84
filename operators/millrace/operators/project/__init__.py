"""Project: compute a new row from each row."""
