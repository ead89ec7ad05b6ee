"""Start and stop the processes of a launch file."""
