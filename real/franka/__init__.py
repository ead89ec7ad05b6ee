"""A Franka arm by its own protocol: the process that alone holds the robot, and stands behind the arm's topics.

::

    deploy ── forward_position_controller/commands ──> node ── goals ──> arm, 1 kHz ── FCI ──> robot
                                                        ^ └─── widths ──> hand ─────── FCI ──> hand
                                                        └──── states of both

Three processes, because `pylibfranka` holds Python's interpreter lock while it waits for the robot or the hand, which
would stop every other thread. `arm` and `hand` import neither torch nor the bus.
"""
