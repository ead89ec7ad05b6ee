"""A policy on simulators of Franka's protocol that others wrote, in an environment of their own (`make sims`)."""
