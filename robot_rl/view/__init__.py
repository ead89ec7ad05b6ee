"""Watch a simulation, a twin or a robot in the browser.

::

    view = SimulationView(env)            # prints nothing; view.page.address is its URL
    observation, _ = env.reset(seed=7)
    view.begin(0, 7)
    while view.wait():                    # paced by the page's speed; False after "reset"
        observation, _, terminated, truncated, infos = env.step(action)
        view.show(observation, action)
"""

from robot_rl.view.live import LiveView
from robot_rl.view.page import Page
from robot_rl.view.simulation import SimulationView, play

__all__ = ["LiveView", "Page", "SimulationView", "play"]
