"""Testbeds by name."""

from robot_rl.util.registry import Registry

testbeds = Registry(
    "testbed",
    {
        "reach": ("sim.testbeds.reach:Reach", "a planar arm of two links brings its tip to a target"),
        "push": ("sim.testbeds.push:Push", "a finger pushes a puck to a goal"),
        "carry": ("sim.testbeds.carry:Carry", "a hand takes an object and carries it to a goal"),
        "insert": ("sim.testbeds.insert:Insert", "a peg goes into a tight slot"),
        "fork": ("sim.testbeds.fork:Fork", "a point passes an obstacle, left or right"),
        "fork-right": ("sim.testbeds.fork:ForkRight", "fork where only the right side succeeds"),
        "fork-fast": ("sim.testbeds.fork:ForkFast", "fork that must be decided at the start"),
        "fork-fast-right": ("sim.testbeds.fork:ForkFastRight", "fork-fast where only the right side succeeds"),
        "fork-goal": ("sim.testbeds.fork:ForkGoal", "fork-fast to any goal behind the obstacle, either way"),
        "stones": ("sim.testbeds.stones:Stones", "jumps to one of two stones; their mean is in the water"),
        "discs": ("sim.testbeds.discs:Discs", "a point with a camera goes to a disc of the instructed colour"),
        "discs-beside": ("sim.testbeds.discs:DiscsBeside", "discs with a demonstrator who stops beside the disc"),
        "maze": ("sim.testbeds.maze:Maze", "a point goes round two walls to any goal"),
        "island": ("sim.testbeds.island:Island", "a point goes past a round obstacle to goals of a given range"),
        "clips": ("sim.testbeds.clips:Clips", "a point in six dimensions follows one of two lines past a ball"),
        "clips-switch": ("sim.testbeds.clips:ClipsSwitch", "clips that start midway along the other line"),
        "pair": ("sim.testbeds.pair:Pair", "two points go to their goals, with rewards on two scales"),
        "via": ("sim.testbeds.via:Via", "a point goes to a goal through a via-point, paid at the two alone"),
        "swing": ("sim.testbeds.swing:Swing", "a pendulum swings up with a weak motor"),
        "swing-varied": ("sim.testbeds.swing:SwingVaried", "swing with an unknown mass and friction"),
    },
)
