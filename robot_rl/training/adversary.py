"""Outside forces of an adversary that learns beside the policy, and becomes rational as the policy holds out.

    policy ----- actions ----> environment ----> observation, reward
    adversary -- forces -----'                   (the adversary's reward is the negative)

Quantal adversarial reinforcement learning (QARL): Reddi et al. 2024 (arXiv 2311.01642). A fixed low temperature is
robust adversarial reinforcement learning (RARL): Pinto et al. 2017 (arXiv 1703.02702). Deviation from QARL: the
concentration moves by fixed steps, and not by a bounded divergence.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor

from policies.base import RunnablePolicy
from robot_rl.evaluation import evaluate
from robot_rl.interface.environment import EnvWrapper
from robot_rl.interface.observation_spec import PRIVILEGED, STATE
from robot_rl.learning.algorithms.adversary import Adversary
from robot_rl.learning.parts.curriculum import Curriculum
from robot_rl.training.curriculum import Wrap
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Interval, PositiveFloat, PositiveInt
from robot_rl.util.seeds import DEVELOPMENT

CONCENTRATION = 50.0, 1.0
"""Concentration of the temperatures' gamma distribution at the start and at the end, as published: the mean falls to
1/50, and the spread grows from a seventh of the mean to the mean."""
COLD = 0.01
"""Temperature of an attacker that tests a finished policy."""


class AdversarialEnv(EnvWrapper):
    """An environment in which an adversary pushes. Each episode has a temperature of its own.

    >>> env = AdversarialEnv(TestbedEnv(Swing(), 256), floor=-400.0)
    """

    def __init__(
        self, env: Any, floor: float = math.inf, hot: float = 1.0, size: int = 30, step: float = 0.1, updates: int = 1
    ):
        """`hot`: mean temperature of the first episodes; inf: forces stay uniformly random. With a finite `floor`, the
        mean falls to 1/50 of it: by a share `step` of the way whenever `size` episodes return at least `floor` on
        average. Without, every episode has the temperature `hot`. `updates`: gradient steps of the adversary in each
        step of the environment. Raises ConfigError without outside forces."""
        super().__init__(env)
        forces = getattr(env, "disturbance", 0)
        if not forces:
            raise ConfigError(
                f"nothing pushes in task {env.info.task!r}: only testbed:swing and tasks of legged robots have "
                "outside forces"
            )
        self.floor, self.hot, self.updates = floor, hot, updates
        self.device = torch.device(getattr(env, "device", "cpu"))
        size_of = env.info.observation + env.privileged_size
        self.adversary = Adversary(size_of, forces, env.num_envs, 0, self.device)
        self.learning = True
        """Whether the adversary learns and explores."""
        start, end = (torch.tensor([value]).double() for value in CONCENTRATION)
        self.concentration = Curriculum(start, end, step, size, -math.inf, floor)
        self.rng = torch.Generator().manual_seed(0)
        self.temperature = self._drawn()
        """Temperature (n,) of each running episode."""
        self.total = torch.zeros(env.num_envs, device=self.device)
        """Return (n,) of each running episode so far."""
        self.whole = torch.ones(env.num_envs, dtype=torch.bool, device=self.device)
        """Whether (n,) the running episodes began at their first step; staggered ones do not move the temperature."""
        self.state = torch.zeros(env.num_envs, size_of, device=self.device)
        self.metrics: dict[str, float] = {}

    def _drawn(self) -> Tensor:
        """Return temperatures (n,) for new episodes: of a gamma distribution, or all `hot`."""
        if not math.isfinite(self.floor):
            return torch.full((self.env.num_envs,), self.hot, device=self.device)
        shape = self.concentration.value.float().expand(self.env.num_envs)
        with torch.random.fork_rng():
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=self.rng)))
            drawn = torch._standard_gamma(shape)
        return (drawn * self.hot / CONCENTRATION[0]).clamp_min(1e-6).to(self.device)

    @staticmethod
    def _seen(observation: dict[str, Tensor]) -> Tensor:
        return torch.cat([observation[key] for key in (STATE, PRIVILEGED) if key in observation], 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.rng.manual_seed(seed)
            self.adversary.rng.manual_seed(seed + 1)
        self.whole.fill_(not (options or {}).get("stagger", False))
        self.total.zero_()
        self.temperature = self._drawn()
        observation, infos = self.env.reset(seed=seed, options=options)
        self.state = self._seen(observation)
        return observation, infos

    def _forces(self) -> Tensor:
        """Return outside forces (n, F) in [-1, 1]."""
        if math.isfinite(self.hot):
            return self.adversary.act(self.state, self.temperature, mean=not self.learning)
        return 2 * torch.rand(self.env.num_envs, self.env.disturbance, generator=self.rng).to(self.device) - 1

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        """Step the environment under the adversary's forces; the adversary takes its gradient steps."""
        forces = self._forces()
        self.env.disturb(forces)
        result: tuple[Any, ...] = self.env.step(actions)
        observation, reward, terminated, truncated, infos = result
        done = terminated | truncated
        if self.learning and math.isfinite(self.hot):
            row = {"state": self.state, "temperature": self.temperature, "action": forces, "reward": reward.float()}
            final = self._seen(infos["final_obs"]) if done.any() else None
            self.adversary.add(row | {"terminated": terminated, "last": done}, final)
            for _ in range(self.updates):
                self.metrics |= self.adversary.learn()
        self.state = self._seen(observation)
        self.total += reward
        if done.any():
            counted = done & self.whole
            outcome = self.total[counted].cpu()
            self.concentration.report(torch.zeros(len(outcome), dtype=torch.long), outcome)
            self.temperature = torch.where(done, self._drawn(), self.temperature)
            self.total = self.total.masked_fill(done, 0.0)
            self.whole |= done
        return result

    @property
    def curriculum_metrics(self) -> dict[str, float]:
        """Return the mean temperature of the running episodes, and metrics of the adversary; none of random forces."""
        if math.isinf(self.hot):
            return {}
        return self.metrics | {"adversary/temperature": float(self.temperature.mean())}

    def wrapper_state(self) -> dict[str, Any]:
        """Return the adversary, the concentration, and the running episodes' values."""
        own = {name: getattr(self, name).clone() for name in ("temperature", "total", "whole", "state")}
        parts = {"adversary": self.adversary.state_dict(), "concentration": self.concentration.state_dict()}
        return own | parts | {"rng": self.rng.get_state()}

    def load_wrapper_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `wrapper_state`."""
        self.adversary.load_state_dict(state["adversary"])
        self.concentration.load_state_dict(state["concentration"])
        self.rng.set_state(state["rng"])
        for name in ("temperature", "total", "whole", "state"):
            setattr(self, name, state[name].to(self.device, copy=True))


def attacked(
    policy: RunnablePolicy, env: Any, episodes: int, on_step: Callable[[int, dict[str, Any]], None] | None = None
) -> AdversarialEnv:
    """Return an environment with an adversary that has learned against a policy, which does not learn, in `episodes`
    development episodes, and learns no more."""
    attack = AdversarialEnv(env, hot=COLD)
    evaluate(policy, attack, episodes, DEVELOPMENT, on_step)
    attack.learning = False
    return attack


def qarl(
    floor: float, hot: PositiveFloat = 1.0, size: PositiveInt = 30, step: Annotated[float, Interval(gt=0, le=1)] = 0.1,
    updates: PositiveInt = 1,
) -> Wrap:  # fmt: skip
    """Push with an adversary that becomes more rational while the policy returns at least `floor`, see
    `AdversarialEnv`."""
    return lambda env: AdversarialEnv(env, floor, hot, size, step, updates)


def rarl(temperature: PositiveFloat = 0.02, updates: PositiveInt = 1) -> Wrap:
    """Push with an adversary of a fixed temperature."""
    return lambda env: AdversarialEnv(env, hot=temperature, updates=updates)


def random_forces() -> Wrap:
    """Push at random in every control period."""
    return lambda env: AdversarialEnv(env, hot=math.inf)
