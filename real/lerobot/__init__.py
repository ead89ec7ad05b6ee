"""An arm behind one of LeRobot's robot classes: the process that alone holds it, and stands behind the arm's topics.

::

    deploy ── forward_position_controller/commands ──> node ── goals ──> holder, 60 Hz ── LeRobot ──> servos
                                                        └──── states ──────┘

Two processes, because LeRobot pins other versions of packages: `holder` runs in LeRobot's own environment, and imports
nothing of ours.
"""
