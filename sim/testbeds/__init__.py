"""Testbeds by name."""

from __future__ import annotations

from robot_rl.util.registry import Registry

testbeds = Registry(
    "testbed",
    {
        "reach": ("sim.testbeds.reach:Reach", "a planar arm of two links brings its tip to a target"),
        "push": ("sim.testbeds.push:Push", "a finger pushes a puck to a goal"),
        "insert": ("sim.testbeds.insert:Insert", "a peg goes into a tight slot"),
        "fork": ("sim.testbeds.fork:Fork", "a point passes an obstacle, left or right"),
        "fork-right": ("sim.testbeds.fork:ForkRight", "the same, and only the right side counts"),
        "fork-fast": ("sim.testbeds.fork:ForkFast", "the same without time to choose a side on the way"),
        "fork-fast-right": ("sim.testbeds.fork:ForkFastRight", "that, and only the right side counts"),
        "stones": ("sim.testbeds.stones:Stones", "jumps to one of two stones; a mix of both is water"),
        "discs": (
            "sim.testbeds.discs:Discs",
            "a point that sees goes to one of two discs that it is told",
        ),
        "maze": ("sim.testbeds.maze:Maze", "a point goes round two walls to any goal"),
        "pair": ("sim.testbeds.pair:Pair", "two points go to their goals, paid on two scales"),
        "swing": ("sim.testbeds.swing:Swing", "a pendulum swings up with too weak a motor"),
    },
)
