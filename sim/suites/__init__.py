"""Public suites of Gymnasium environments, each with its own scripted demonstrators; see docs/suites.md.

`sim.foreign.gym_worker` loads these files by their path, also in another Python: they import the suite,
gymnasium and numpy only.
"""
