"""Every recipe's agent acts and learns on a device that is not the CPU.

The device is torch's `meta`: tensors without numbers, whose operations refuse a CPU tensor beside them as a GPU's do,
and which refuse to tell a number to the CPU, for which a GPU would have to be waited for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.bundle import Bundle
from policies.flow import FlowConfig, FlowPolicy
from policies.networks.gaussian import GaussianConfig
from policies.vla.config import BackboneConfig
from policies.vla.flow import VLAFlowPolicy
from policies.vla.tokens import VLATokensPolicy
from robot_rl.data.replay import Replay
from robot_rl.data.sources import Demonstrations, sample_batches
from robot_rl.interface.observation_spec import LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.parts.heads import Bins
from robot_rl.recipes import recipes
from robot_rl.recipes.job import Job
from robot_rl.rewards import TaskReward
from robot_rl.training.metrics import EpisodeMetrics
from robot_rl.training.off_policy import OffPolicyConfig, train_off_policy
from robot_rl.training.on_policy import OnPolicyConfig, train_on_policy
from sim.make import describe
from sim.tasks import tasks

Build = Callable[..., Any]
META = torch.device("meta")
OFF_POLICY = [
    "sac", "td3", "rlpd", "resfit", "hil-serl", "iql", "td3-bc", "cal-ql", "fql", "ofql", "cfgrl", "qc", "expo", "dsrl",
    "porl", "cqn", "arsq",
]  # fmt: skip
ROWS = 4


class Anywhere(torch.Generator):
    """A generator of the CPU, whatever the device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers take the device for one of those that have fused kernels, and a CPU generator for its own."""
    module = sys.modules[torch.optim.Optimizer.__module__]
    monkeypatch.setattr(module, "_get_fused_kernels_supported_devices", lambda: ["meta", "cpu"])
    monkeypatch.setattr(torch, "Generator", Anywhere)


def job(task: str = "panda-lift", base: Bundle | None = None) -> Job:
    info: Any = describe(task)
    return Job(info, None, None, 0, Path("nowhere"), base, lambda *_: None, "meta")  # type: ignore[arg-type]


def built(name: str) -> Any:
    """Return a recipe's agent with its own settings."""
    lift = describe("panda-lift")
    flow = FlowPolicy(Size(lift.observation, lift.action), FlowConfig(hidden=16, layers=1, sample_steps=2))
    gaussian = GaussianPolicy(flow.size, GaussianConfig(hidden=(16,), std=0.1))
    base, recipe = Bundle(gaussian if name == "porl" else flow, lift.interface, lift.robot), recipes.get(name)()
    return recipe.build(job(base=base), SimpleNamespace(privileged_size=5, mirror=None))


def seen(agent: Any, rows: int = ROWS) -> dict[str, Tensor]:
    return {"observation.state": torch.zeros(rows, agent.policy.size.observation, device=META)}


def on_meta(values: Any) -> bool:
    return all(v.device == META for v in values.values())


@pytest.mark.parametrize("name", OFF_POLICY)
def test_off_policy_agents_act_store_and_update(name: str) -> None:
    agent, rng = built(name), torch.Generator()
    replay = Replay(400, ROWS, agent.columns, agent.device)
    ended = torch.tensor([True, False, False, False])
    for t in range(12):
        action, kept = agent.act(seen(agent), rng, LearningPhase.WARMUP if t < 4 else LearningPhase.LEARN)
        assert action.device == META and action.shape == (ROWS, agent.policy.size.action)
        assert on_meta({k: v for k, v in kept.items() if k != "decides"}), "flags are on the CPU"
        row = seen(agent) | kept | {"action": action, "reward": torch.zeros(ROWS, device=META)}
        done = ended & (t % 5 == 4)
        final = None
        if done.any():
            final = seen(agent) | agent.peek(seen(agent), done, rng)
            agent.reset(done.nonzero().squeeze(-1))
        replay.add(row | {"terminated": done, "last": done}, final)
    assert on_meta(replay.columns) and replay.size == 12 * ROWS
    batches = sample_batches([(replay, 16)], 2 * getattr(agent.config, "actor_delay", 1), agent.sampling, rng)
    for k, batch in enumerate(batches):
        assert on_meta(batch)
        metrics = agent.update(batch, LearningPhase.LEARN if k else LearningPhase.WARMUP)
    assert on_meta(metrics) and (name in ("qc", "cqn", "arsq") or agent.updates.actor > 0)
    agent.finish()
    assert on_meta(agent.policy.state_dict()) and on_meta(agent.value_state())


@pytest.mark.parametrize("name", ["hil-serl", "rlif"])
def test_learners_from_corrections_begin_there_without_a_base(name: str) -> None:
    agent = recipes.get(name)().build(job())
    assert on_meta(agent.policy.state_dict()) and on_meta(agent.critic.state_dict())


@pytest.mark.parametrize("name", ["resfit", "hil-serl"])
def test_recorded_episodes_are_annotated_there(name: str) -> None:
    agent = built(name)
    action = torch.zeros(29, agent.policy.size.action)
    columns = agent.annotate(seen(agent, 30), action, torch.zeros(29, device=META), torch.Generator())
    assert on_meta(columns) and columns["base"].shape == (30, agent.policy.size.action)
    replay = Replay(100, 1, agent.columns, agent.device)
    episode = seen(agent, 30) | columns | {"action": action}
    replay.add_episode(episode | {"reward": torch.zeros(29), "terminated": torch.arange(29) == 28})
    assert replay.size == 29 and on_meta(replay.columns)


def test_what_acting_remembers_goes_back_there() -> None:
    """A checkpoint is read on the CPU."""
    agent, rng = built("resfit"), torch.Generator()
    agent.act(seen(agent), rng, LearningPhase.LEARN)
    noise, queue, policy = (agent.memory()[name] for name in ("noise", "queue", "policy"))
    saved = {"noise": torch.zeros(noise.shape), "policy": policy | {"chunks": torch.zeros(policy["chunks"].shape)}}
    saved |= {"queue": queue | {"chunks": torch.zeros(queue["chunks"].shape)}}
    other = built("resfit")
    other.load_memory(saved, seen(other))
    action, kept = other.act(seen(other), rng, LearningPhase.LEARN)
    assert action.device == META and on_meta(kept) and other.memory()["policy"]["chunks"].device == META


@pytest.mark.parametrize("head", ["scalar", "hl-gauss", "c51", "gaussian"])
def test_every_head(agent: Build, residual: Build, head: str) -> None:
    learner = agent(residual().to(META), head=head, critics=4, subset=2, actor_delay=1, imitation=1.0)
    names = {"observation.state": 3, "next.observation.state": 3, "base": 2, "next.base": 2, "action": 2}
    batch = {name: torch.zeros(8, size, device=META) for name, size in names.items()}
    batch |= {name: torch.zeros(8, device=META) for name in ("reward", "discount", "intervention")}
    assert on_meta(learner.update(batch))


@pytest.mark.parametrize("name", ["bc", "flow-bc", "diffusion-bc"])
def test_cloned_policies_fit_update_and_act(name: str) -> None:
    agent, rng = built(name), torch.Generator()
    size, policy = agent.policy.size, agent.policy
    episodes = [{"observation.state": torch.zeros(20, size.observation), "action": torch.zeros(20, size.action)}] * 2
    data = Demonstrations(
        {k: torch.cat([e[k] for e in episodes]).to(META) for k in episodes[0]}, torch.tensor([0, 20]),
        torch.tensor([20, 20]),
    )  # fmt: skip
    policy.fit(data.columns)
    batch = data.sample(8, data.rows(policy.horizon).to(META), rng)
    assert on_meta(agent.update(batch, rng))
    agent.finish()
    chunk = policy.act(seen(agent), rng)
    assert chunk.device == META and chunk.shape == (ROWS, policy.horizon, size.action)


@pytest.mark.parametrize("make", [VLAFlowPolicy, VLATokensPolicy])
def test_policies_that_see_and_read_update_and_act(make: Build) -> None:
    """The numbers of words stand for an instruction, which is read on the CPU."""
    front, told, rng = "observation.images.front", torch.full((ROWS, 5), 2, device=META), torch.Generator()
    size = Size(3, 2, ObservationSpec.of(**{front: picture_field(16, 16), LANGUAGE: LANGUAGE_FIELD}))
    reads = BackboneConfig(width=16, heads=2, layers=1, readouts=2, channels=(8,), words=("lift",))
    policy = make(size, make.config_class(encoder=reads)).to(META)
    observation = {"observation.state": torch.zeros(ROWS, 3, device=META), LANGUAGE: told}
    observation[front] = torch.zeros(ROWS, 16, 16, 3, dtype=torch.uint8, device=META)
    agent = Cloning(policy, CloningConfig(), 10)
    assert on_meta(agent.update(observation | {"action": torch.zeros(ROWS, policy.horizon, 2, device=META)}, rng))
    assert policy.act(observation, rng).device == META


@pytest.mark.parametrize("task", ["panda-lift", "go2-velocity"])
def test_ppo_acts_assesses_and_updates(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at numbers on purpose, at most once per gradient step: is it finite, and how far has it gone?"""
    yes, half = Tensor.__bool__, Tensor.__float__
    monkeypatch.setattr(Tensor, "__bool__", lambda x: True if x.is_meta else yes(x))
    monkeypatch.setattr(Tensor, "__float__", lambda x: 0.5 if x.is_meta else half(x))
    mirror = tasks.get(task).mirror
    privileged = len(mirror.privileged) if mirror else 5
    agent = recipes.get("ppo")().build(job(task), SimpleNamespace(privileged_size=privileged, mirror=mirror))
    observation = seen(agent) | {"observation.environment_state": torch.zeros(ROWS, privileged, device=META)}
    rows = []
    for _ in range(6):
        action, row = agent.act(observation, torch.Generator())
        assert action.device == META and on_meta(row)
        rows.append(row)
        agent.reset(torch.tensor([1]))
    rollout = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    no = torch.zeros(6, ROWS, device=META)
    batch = agent.assess(rollout | {"reward": no, "terminated": no.bool(), "done": no.bool()}, observation, [])
    assert on_meta(batch)
    agent.update(batch)
    assert on_meta(agent.policy.state_dict())


@pytest.mark.parametrize("physics", ["cpu", "meta"])
@pytest.mark.parametrize("name", ["sac", "resfit", "ppo"])
def test_the_loops_run_there(name: str, physics: str, run: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Physics on the CPU or there, the learner there: every step ends the episodes of all environments, as far as one
    is told.

    What tells the CPU something is replaced, for there is nothing to tell: logs, checkpoints, and which have ended.
    """
    cpu, to, yes, half = Tensor.cpu, Tensor.to, Tensor.__bool__, Tensor.__float__

    def moved(x: Tensor, *where: Any, **how: Any) -> Tensor:
        fetched = x.is_meta and str(where[0]) == "cpu"
        return torch.ones(x.shape, dtype=x.dtype) if fetched else to(x, *where, **how)

    monkeypatch.setattr(Tensor, "to", moved)
    monkeypatch.setattr(Tensor, "cpu", lambda x: torch.ones(x.shape, dtype=x.dtype) if x.is_meta else cpu(x))
    monkeypatch.setattr(Tensor, "__bool__", lambda x: True if x.is_meta else yes(x))
    monkeypatch.setattr(Tensor, "__float__", lambda x: 0.5 if x.is_meta else half(x))
    monkeypatch.setattr(EpisodeMetrics, "add", lambda *_: None)
    agent, steps = built(name), [0]
    size, ones = agent.policy.size, torch.ones(ROWS, device=physics)
    state = {"observation.state": torch.zeros(ROWS, size.observation, device=physics)}
    state["observation.environment_state"] = torch.zeros(ROWS, 5, device=physics)

    def step(actions: Tensor) -> Any:
        assert actions.device.type == physics
        steps[0] += 1
        return state, ones, ones.bool(), ones.bool(), {"success": ones.bool(), "final_obs": state}

    env = SimpleNamespace(num_envs=ROWS, device=torch.device(physics), reset=lambda **_: (state, {}), step=step)
    with run() as folder:
        monkeypatch.setattr(folder, "save", lambda *_: None)
        if name == "ppo":
            monkeypatch.setattr("robot_rl.learning.algorithms.ppo.PPO.assess", lambda agent, rollout, *_: rollout)
            monkeypatch.setattr("robot_rl.learning.algorithms.ppo.PPO.update", lambda *_: {})
            on_policy = OnPolicyConfig(ROWS * 12, num_envs=ROWS, rollout=6)
            train_on_policy(env, agent, TaskReward(), on_policy, folder, 0, lambda *_: None)
        else:
            config = OffPolicyConfig(ROWS * 12, num_envs=ROWS, batch=8, warmup=ROWS * 6, learning_starts=0)
            train_off_policy(env, agent, None, TaskReward(), config, folder, 0, lambda *_: None)
            assert agent.updates.actor > 0
    assert steps[0] == 12 and on_meta(agent.policy.state_dict())


def left_behind(agent: ActorCritic, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if part == "normalizer":
        agent.policy.normalizer.mean = torch.zeros(agent.policy.size.observation)
    elif part == "noise":
        agent.noise.device = torch.device("cpu")
    elif part == "bins":
        monkeypatch.setattr(Bins, "centers", lambda self, like: torch.linspace(self.low, self.high, self.outputs))


@pytest.mark.parametrize("part", ["", "normalizer", "noise", "bins"])
def test_a_tensor_left_on_the_cpu_is_refused(agent: Build, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is looked for here is found."""
    learner = agent(GaussianPolicy(Size(3, 2), GaussianConfig(std=0.1)).to(META), head="c51")
    left_behind(learner, part, monkeypatch)
    state, one = torch.zeros(8, 3, device=META), torch.zeros(8, device=META)
    batch = {"observation.state": state, "next.observation.state": state, "action": state[:, :2]}
    with pytest.raises(RuntimeError, match="device") if part else nullcontext():
        learner.act({"observation.state": state}, torch.Generator(), LearningPhase.LEARN)
        learner.update(batch | {"reward": one, "discount": one})
