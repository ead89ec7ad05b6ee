"""Agents of all recipes act and learn on a device other than the CPU.

The device is torch's `meta`: tensors without data. Like a GPU's, its operations refuse CPU tensors. It also refuses to
copy a number to the CPU, for which the CPU would have to wait for a GPU.
"""

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
from policies.networks.encoder import EncoderConfig
from policies.networks.gaussian import GaussianConfig
from policies.vla.config import BackboneConfig
from policies.vla.flow import VLAFlowPolicy
from policies.vla.tokens import VLATokensPolicy
from robot_rl.data.replay import Replay
from robot_rl.data.sources import Demonstrations, Observed, sample_batches
from robot_rl.interface.observation_spec import LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.algorithms.jepa import PredictiveCloning, PredictiveConfig
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
    "porl", "cqn", "arsq", "rlt", "awac",
]  # fmt: skip
ROWS = 4


class CPUGenerator(torch.Generator):
    """CPU generator in place of another device's."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow fused optimizers and CPU generators on the device."""
    module = sys.modules[torch.optim.Optimizer.__module__]
    monkeypatch.setattr(module, "_get_fused_kernels_supported_devices", lambda: ["meta", "cpu"])
    monkeypatch.setattr(torch, "Generator", CPUGenerator)


def job(task: str = "panda-lift", base: Bundle | None = None) -> Job:
    return Job(describe(task), None, None, 0, Path("nowhere"), base, lambda *_: None, "meta")


def built(name: str) -> Any:
    """Return a recipe's agent with its default settings."""
    lift = describe("panda-lift")
    flow = FlowPolicy(Size(lift.observation, lift.action), FlowConfig(hidden=16, layers=1, sample_steps=2))
    gaussian = GaussianPolicy(flow.size, GaussianConfig(hidden=(16,), std=0.1))
    base, recipe = Bundle(gaussian if name == "porl" else flow, lift.interface, lift.robot), recipes.get(name)()
    return recipe.build(job(base=base), SimpleNamespace(privileged_size=5, mirror=None))


def seen(agent: Any, rows: int = ROWS) -> dict[str, Tensor]:
    return {"observation.state": torch.zeros(rows, agent.policy.size.observation, device=META)}


def readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let meta tensors convert to True and 0.5."""
    boolean, number = Tensor.__bool__, Tensor.__float__
    monkeypatch.setattr(Tensor, "__bool__", lambda x: True if x.is_meta else boolean(x))
    monkeypatch.setattr(Tensor, "__float__", lambda x: 0.5 if x.is_meta else number(x))


def on_meta(values: Any) -> bool:
    return all(v.device == META for v in values.values())


@pytest.mark.parametrize("name", OFF_POLICY)
def test_off_policy_agents_act_store_and_update_on_the_device(name: str) -> None:
    agent, rng = built(name), torch.Generator()
    replay = Replay(400, ROWS, agent.columns, agent.device)
    ended = torch.tensor([True, False, False, False])
    for t in range(12):
        action, kept = agent.act(seen(agent), rng, LearningPhase.WARMUP if t < 4 else LearningPhase.LEARN)
        assert action.device == META and action.shape == (ROWS, agent.policy.size.action)
        assert on_meta({k: v for k, v in kept.items() if k != "decides"}), "`decides` is on the CPU"
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
def test_learners_from_corrections_are_built_on_the_device_without_a_base(name: str) -> None:
    agent = recipes.get(name)().build(job())
    assert on_meta(agent.policy.state_dict()) and on_meta(agent.critic.state_dict())


@pytest.mark.parametrize("name", ["resfit", "hil-serl"])
def test_recorded_episodes_are_annotated_on_the_device(name: str) -> None:
    agent = built(name)
    action = torch.zeros(29, agent.policy.size.action)
    columns = agent.annotate(seen(agent, 30), action, torch.zeros(29, device=META), torch.Generator())
    assert on_meta(columns) and columns["base"].shape == (30, agent.policy.size.action)
    replay = Replay(100, 1, agent.columns, agent.device)
    episode = seen(agent, 30) | columns | {"action": action}
    replay.add_episode(episode | {"reward": torch.zeros(29), "terminated": torch.arange(29) == 28})
    assert replay.size == 29 and on_meta(replay.columns)


def test_state_of_acting_is_restored_to_the_device() -> None:
    """A checkpoint is loaded on the CPU."""
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
def test_critic_heads_update_on_the_device(agent: Build, residual: Build, head: str) -> None:
    learner = agent(residual().to(META), head=head, critics=4, subset=2, actor_delay=1, imitation=1.0)
    names = {"observation.state": 3, "next.observation.state": 3, "base": 2, "next.base": 2, "action": 2}
    batch = {name: torch.zeros(8, size, device=META) for name, size in names.items()}
    batch |= {name: torch.zeros(8, device=META) for name in ("reward", "discount", "intervention")}
    assert on_meta(learner.update(batch))


@pytest.mark.parametrize("name", ["bc", "flow-bc", "diffusion-bc"])
def test_cloned_policies_fit_update_and_act_on_the_device(name: str) -> None:
    agent, rng = built(name), torch.Generator()
    size, policy = agent.policy.size, agent.policy
    columns = {"observation.state": torch.zeros(40, size.observation), "action": torch.zeros(40, size.action)}
    data = Demonstrations({k: v.to(META) for k, v in columns.items()}, torch.tensor([0, 20]), torch.tensor([20, 20]))
    policy.fit(data.columns)
    batch = data.sample(8, data.rows(policy.horizon).to(META), rng)
    assert on_meta(agent.update(batch, rng))
    agent.finish()
    chunk = policy.act(seen(agent), rng)
    assert chunk.device == META and chunk.shape == (ROWS, policy.horizon, size.action)


def test_predictive_cloning_samples_and_updates_on_the_device() -> None:
    front, rng = "observation.images.front", torch.Generator()
    size = Size(3, 2, ObservationSpec.of(**{front: picture_field(16, 16)}))
    policy = GaussianPolicy(size, GaussianConfig(hidden=(8,), std=0.1, encoder=EncoderConfig((8,), 8, 2))).to(META)
    columns = {"observation.state": torch.zeros(40, 3), front: torch.zeros(40, 16, 16, 3, dtype=torch.uint8)}
    columns = {k: v.to(META) for k, v in (columns | {"action": torch.zeros(40, 2)}).items()}
    data = Observed(columns, torch.tensor([0, 20]), torch.tensor([20, 20]), 20, (1, 4))
    agent = PredictiveCloning(policy, PredictiveConfig(ahead=(1, 4)), 10)
    assert on_meta(agent.update(data.sample(8, data.rows(1).to(META), rng), rng))


@pytest.mark.parametrize("make", [VLAFlowPolicy, VLATokensPolicy])
def test_vision_language_policies_update_and_act_on_the_device(make: Build) -> None:
    """The instruction is given as word indices, since text is read on the CPU."""
    front, words, rng = "observation.images.front", torch.full((ROWS, 5), 2, device=META), torch.Generator()
    size = Size(3, 2, ObservationSpec.of(**{front: picture_field(16, 16), LANGUAGE: LANGUAGE_FIELD}))
    reads = BackboneConfig(width=16, heads=2, layers=1, readouts=2, channels=(8,), words=("lift",))
    policy = make(size, make.config_class(encoder=reads)).to(META)
    observation = {"observation.state": torch.zeros(ROWS, 3, device=META), LANGUAGE: words}
    observation[front] = torch.zeros(ROWS, 16, 16, 3, dtype=torch.uint8, device=META)
    agent = Cloning(policy, CloningConfig(), 10)
    assert on_meta(agent.update(observation | {"action": torch.zeros(ROWS, policy.horizon, 2, device=META)}, rng))
    assert policy.act(observation, rng).device == META


@pytest.mark.parametrize("task", ["panda-lift", "go2-velocity"])
def test_ppo_acts_assesses_and_updates_on_the_device(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PPO reads numbers by design, once per gradient step: the check for non-finite values, and the divergence."""
    readable(monkeypatch)
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
def test_loops_run_on_the_device(name: str, physics: str, run: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Physics on the CPU or on the device, the learner on the device; every step ends all episodes.

    Copies to the CPU are replaced, since meta tensors have no data: logs, checkpoints, and ended episodes.
    """
    cpu, to = Tensor.cpu, Tensor.to
    readable(monkeypatch)

    def moved(x: Tensor, *where: Any, **how: Any) -> Tensor:
        fetched = x.is_meta and str(where[0]) == "cpu"
        return torch.ones(x.shape, dtype=x.dtype) if fetched else to(x, *where, **how)

    monkeypatch.setattr(Tensor, "to", moved)
    monkeypatch.setattr(Tensor, "cpu", lambda x: torch.ones(x.shape, dtype=x.dtype) if x.is_meta else cpu(x))
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


@pytest.mark.parametrize("part", ["", "normalizer", "noise", "bins"])
def test_tensor_on_the_cpu_is_refused(agent: Build, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the tests of this file detect a tensor on the wrong device."""
    learner = agent(GaussianPolicy(Size(3, 2), GaussianConfig(std=0.1)).to(META), head="c51")
    if part == "normalizer":
        learner.policy.normalizer.mean = torch.zeros(3)
    elif part == "noise":
        learner.noise.device = torch.device("cpu")
    elif part == "bins":
        monkeypatch.setattr(Bins, "centers", lambda self, like: torch.linspace(self.low, self.high, self.outputs))
    state, one = torch.zeros(8, 3, device=META), torch.zeros(8, device=META)
    batch = {"observation.state": state, "next.observation.state": state, "action": state[:, :2]}
    with pytest.raises(RuntimeError, match="device") if part else nullcontext():
        learner.act({"observation.state": state}, torch.Generator(), LearningPhase.LEARN)
        learner.update(batch | {"reward": one, "discount": one})
