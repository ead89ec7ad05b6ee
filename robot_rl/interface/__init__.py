"""The contract between a task, a policy and a robot."""
