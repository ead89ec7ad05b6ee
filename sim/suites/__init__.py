"""Public suites of Gymnasium environments with their own scripted demonstrators; see docs/suites.md.

`sim.foreign.gym_worker` loads these files by path, possibly in another Python environment. They may import only the
suite, gymnasium and numpy.
"""
