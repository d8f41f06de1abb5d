"""The paper's tables and figures: its numbers, the runs they consist of, and their files."""
