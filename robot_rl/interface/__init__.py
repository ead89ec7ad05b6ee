"""What a task, a policy and a robot agree on."""
