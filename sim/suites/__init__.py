"""Public suites of Gymnasium environments with their own scripted demonstrators; see docs/suites.md.

`sim.foreign.gym_worker` loads the files of this folder by path, possibly in another Python environment. They may import
only their suite, gymnasium and numpy.
"""
