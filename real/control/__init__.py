"""The command thread, its clock and limits, and the guard process."""
