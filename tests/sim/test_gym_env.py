"""Gymnasium environments as tasks, in this process and in another Python."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import gymnasium as gym
import numpy as np
import pytest
import torch

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.bundle import load_bundle
from policies.networks.gaussian import GaussianConfig
from robot_rl.cli.main import main
from robot_rl.data import Dataset
from robot_rl.rewards import TaskReward
from robot_rl.training import off_policy
from robot_rl.training.off_policy import OffPolicyConfig, train_off_policy
from robot_rl.util.errors import ConfigError, UserError
from sim.foreign.gym_env import GymEnv
from sim.make import describe

Build = Callable[..., Any]
TOY = '''
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text, Tuple

class Toy(gym.Env):
    """A drifting point with actions of different ranges; terminates beyond 3, truncates after 7 steps."""
    action_space = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    observation_space = Box(-np.inf, np.inf, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.normal(size=2)
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        print("output of an environment must not mix with the answers")
        self.x = self.x + 0.5 * action * [1.0, 0.1] + 0.1 * self.np_random.normal(size=2)
        ended = bool(np.abs(self.x).max() > 3)
        return self.observe(), -float(np.square(self.x).sum()), ended, False, {"is_success": ended}

    def observe(self):
        return self.x.copy()

class Silent(Toy):
    def step(self, action):
        return *super().step(action)[:4], {}

class Drawn(Toy):
    metadata = {"render_modes": ["rgb_array"]}
    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return np.full((32, 48, 3), 100 + 10 * self.x[0]).astype(np.uint8)

class Spoilt(Toy):
    """The third step has a reward or an observation that is not finite."""
    spoils = "reward"
    def reset(self, **words):
        self.steps = 0
        return super().reset(**words)

    def step(self, action):
        self.steps += 1
        observation, reward, *rest = super().step(action)
        if self.steps == 3 and self.spoils == "reward":
            reward = float("nan")
        if self.steps == 3 and self.spoils == "observation":
            observation[1] = np.inf
        return observation, reward, *rest

class Unseen(Spoilt):
    spoils = "observation"

class Choice(Toy):
    action_space = Discrete(3)

class Boundless(Toy):
    action_space = Box(-np.inf, np.inf, (2,))

class Steps(Toy):
    """Integer actions, and an integer observation that grows tenfold at every step."""
    action_space = Box(0, 3, (2,), np.int64)
    observation_space = Box(-(2**62), 2**62, (1,), np.int64)
    taken, grows = [], 10
    def reset(self, *, seed=None, options=None):
        self.now = 1000
        return self.observe(), {}

    def observe(self):
        return np.array([self.now], self.observation_space.dtype)

    def step(self, action):
        self.taken.append(action.tolist())
        self.now *= self.grows
        return self.observe(), 0.0, False, False, {}

class Huge(Steps):
    observation_space, grows = Box(-np.inf, np.inf, (1,), np.float64), 1e20

class Nested(Toy):
    """Nested spaces of all kinds."""
    pixels = np.arange(3 * 16 * 20, dtype=np.uint8).reshape(3, 16, 20)
    observation_space = Dict({
        "arm": Dict({"joints": Box(-9, 9, (2,)), "mode": Discrete(3, start=1)}),
        "both": Tuple((MultiBinary(2), Box(0, 255, (16, 20, 1), np.uint8))),
        "camera": Box(0, 255, (3, 16, 20), np.uint8)})
    def observe(self):
        mode = 1 + int(self.x[0] > 0)
        grey = np.full((16, 20, 1), 100 + int(10 * self.x[0]), np.uint8)
        return {"arm": {"joints": self.x.astype(np.float32), "mode": mode},
                "both": (np.array([1, 0], np.int8), grey), "camera": self.pixels.copy()}

class Eye(Toy):
    observation_space = Box(0, 255, (64, 64, 3), np.uint8)
    def observe(self):
        return np.full((64, 64, 3), 100 + int(10 * self.x[0]), np.uint8)

class Floats(Toy):
    observation_space = Box(0, 1, (64, 64, 3))

class Said(Toy):
    observation_space = Dict({"told": Text(9), "x": Box(-9, 9, (2,))})

class Endless(Toy):
    def step(self, action):
        observation, reward, _, _, info = super().step(np.array([0, 5], np.float32))
        return observation, reward, False, False, info

def lacks(**words):
    import a_package_that_nobody_has

kinds = [Toy, Silent, Drawn, Spoilt, Unseen, Choice, Boundless, Steps, Huge, Nested, Eye, Floats, Said]
for name, entry in [(c.__name__, c) for c in kinds] + [("Lacks", lacks)]:
    gym.register(f"{name}-v0", entry, max_episode_steps=7)
gym.register("Endless-v0", Endless)
gym.register("Limited-v0", lambda: gym.wrappers.TimeLimit(Endless(), 5))
'''
NAME = "gym:toy_envs:{}-v0"


@pytest.fixture(autouse=True)
def toy(module: Callable[[str, str], None]) -> None:
    module("toy_envs", TOY)


def played(env: GymEnv, steps: int = 20, seed: int = 3) -> list[Any]:
    """Return the results of a reset and of the same `steps` actions."""
    rng = torch.Generator().manual_seed(0)
    answers: list[Any] = [env.reset(seed=seed)]
    return answers + [env.step(2.4 * torch.rand(env.num_envs, 2, generator=rng) - 1.2) for _ in range(steps)]


def test_process_of_another_python_gives_equal_results(same: Build) -> None:
    here, there = GymEnv(NAME.format("Toy"), 3), GymEnv(NAME.format("Toy"), 3, Path(sys.executable))
    assert here.info == there.info
    answers = played(here)
    assert same(answers, played(there))
    assert same(answers, played(here)) and not same(answers, played(here, seed=4))
    there.close()
    assert there.batch.process.returncode == 0, "the process ends at close"


def test_steps_and_autoresets_equal_those_of_bare_environments(same: Build) -> None:
    """Every copy against a bare environment: steps, final observations, and first observations."""
    env = GymEnv(NAME.format("Toy"), 4)
    bare = [gym.make("Toy-v0") for _ in range(4)]
    expected = torch.stack([torch.from_numpy(b.reset(seed=3 + k)[0]).float() for k, b in enumerate(bare)])
    answers, rng = played(env, 30), torch.Generator().manual_seed(0)
    assert torch.equal(answers[0][0]["observation.state"], expected)
    ends = set()
    for observation, reward, terminated, truncated, infos in answers[1:]:
        action = (2.4 * torch.rand(4, 2, generator=rng) - 1.2).clamp(-1, 1).double().numpy()
        for k, one in enumerate(bare):
            low, high = one.action_space.low, one.action_space.high
            physical = (low + (action[k] + 1) / 2 * (high - low)).astype("float32")
            seen, own, ended, cut, info = one.step(physical)
            assert reward[k].item() == pytest.approx(own, rel=1e-6)
            assert (bool(terminated[k]), bool(truncated[k])) == (ended, cut)
            assert bool(infos["success"][k]) == info["is_success"]
            ends |= {"terminated" for _ in range(ended)} | {"truncated" for _ in range(cut)}
            if ended or cut:
                assert infos["_final_obs"][k]
                assert torch.equal(infos["final_obs"]["observation.state"][k], torch.from_numpy(seen).float())
                seen = one.reset()[0]
            assert torch.equal(observation["observation.state"][k], torch.from_numpy(seen).float())
        assert ("final_obs" in infos) == bool((terminated | truncated).any())
    assert ends == {"terminated", "truncated"}


@pytest.mark.parametrize("python", [None, Path(sys.executable)])
def test_nested_observation_is_a_vector_and_pictures(python: Path | None) -> None:
    env = GymEnv(NAME.format("Nested"), 2, python)
    grey, camera = "observation.images.both_1", "observation.images.camera"
    assert env.info.observation == 2 + 3 + 2
    assert env.info.extra_inputs.pictures == {grey: (16, 20, 3), camera: (16, 20, 3)}
    ended = False
    for answer in played(env):
        seen, infos = answer[0], answer[-1]
        shown = [seen, infos["final_obs"]] if "final_obs" in infos else [seen]
        ended |= len(shown) == 2
        for each in shown:
            x, mode, bits = each["observation.state"].split((2, 3, 2), 1)
            assert torch.equal(mode, torch.stack([x[:, 0] <= 0, x[:, 0] > 0, x[:, 0] > 9], 1).float())
            assert bits.tolist() == [[1, 0]] * 2
            rows = torch.ones(2, dtype=torch.bool) if each is seen else infos["_final_obs"]
            values = (100 + (10 * x[:, 0]).trunc()).to(torch.uint8)
            assert torch.equal(each[grey][rows, 3, 4], values[rows, None].expand(-1, 3)), "picture of the same step"
            assert torch.equal(each[camera][0, 1, 2], torch.tensor([22, 22 + 64, 22 + 128], dtype=torch.uint8))
    assert ended
    env.close()


def test_sac_trains_on_pixels(tmp_path: Path) -> None:
    """With an encoder, in an environment without other observations."""
    task, run = NAME.format("Eye"), tmp_path / "run"
    assert describe(task).observation == 0
    words = ["train", task, "--recipe", "sac", "--training.steps", "20", "--training.warmup", "10", "--out", str(run)]
    words += ["--training.learning-starts", "12", "--training.batch", "4", "--training.num-envs", "2"]
    assert main([*words, "--training.capacity", "100"]) == 0
    policy = load_bundle(run).policy
    assert policy.size.pictures == {"observation.images.pixels": (64, 64, 3)}
    assert main(["evaluate", str(run), "--episodes", "2", "--num-envs", "2"]) == 0
    assert main(["train", task, "--recipe", "ppo", "--out", str(tmp_path / "blind")]) == 2, "ppo has no encoder"
    assert main(["collect", task, "--policy", str(run), "--out", str(tmp_path / "set")]) == 2, "a dataset needs numbers"
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(("name", "value"), [("Steps", "1e.08.*exactly"), ("Huge", "1e.43")])
def test_observation_that_float32_does_not_hold_raises(name: str, value: str) -> None:
    env = GymEnv(NAME.format(name), 2)
    env.reset(seed=0)
    with pytest.raises(UserError, match=f"copy 0 of 2 returned observation with {value}.*scale it"):
        for _ in range(7):
            env.step(torch.zeros(2, 2))


def test_integer_actions_are_rounded() -> None:
    env = GymEnv(NAME.format("Steps"), 1)
    env.reset(seed=0)
    sys.modules["toy_envs"].Steps.taken.clear()
    for unit in (-1.0, -0.99, 0.3, 0.9, 1.0):
        env.reset(seed=0)
        env.step(torch.full((1, 2), unit))
    assert sys.modules["toy_envs"].Steps.taken == [[k, k] for k in (0, 0, 2, 3, 3)]


def test_episodes_without_a_time_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, run = NAME.format("Endless"), tmp_path / "run"
    assert [describe(NAME.format(name)).horizon for name in ("Toy", "Limited", "Endless")] == [7, 5, None]
    assert describe("gym:Pendulum-v1", Path(sys.executable)).horizon == 200
    train = f"train {task} --recipe sac --training.steps 20 --training.warmup 10 --training.learning-starts 10".split()
    assert main([*train, "--out", str(run)]) == 0, "sac does not need the end of an episode"
    bounded = [*train, "--out", str(tmp_path / "bounded"), "--episode-steps", "9"]
    assert main(bounded) == 0
    collect = f"collect {task} --policy {run} --out {tmp_path / 'no'}"
    for words in (f"evaluate random:{task}", f"evaluate {run}", collect):
        capsys.readouterr()
        assert main([*words.split(), "--episodes", "2"]) == 2
        assert f"{task} has no time limit" in (error := capsys.readouterr().err) and "--episode-steps" in error
        assert main([*words.replace("no", "yes").split(), "--episodes", "2", "--episode-steps", "4"]) == 0
    assert (run / "evaluation-steps-4.json").is_file() and not (run / "evaluation.json").exists(), "with the limit"
    assert not (tmp_path / "no").exists() and Dataset(tmp_path / "yes").episodes[0].length == 4
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "bounded"), "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["steps"] == 9, "same limit as in training"
    assert main(["evaluate", "random:testbed:push", "--episode-steps", "4"]) == 2, "the testbed has its own limit"


@pytest.mark.parametrize(("task", "reason"), [
    ("gym:NoSuchThing-v3", "NoSuchThing"), ("gym:no_such_module:X-v0", "no_such_module"), ("gym:Toy", "Toy"),
    (NAME.format("Choice"), "Discrete"), (NAME.format("Said"), "'told' is Text"),
    (NAME.format("Floats"), "no picture"),
    (NAME.format("Boundless"), "limits"), (NAME.format("Lacks"), "a_package_that_nobody_has"),
])  # fmt: skip
def test_unsupported_environment_raises_in_either_python(task: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        GymEnv(task)
    message = str(error.value)
    assert task in message and reason in message and "\n" not in message
    with pytest.raises(ConfigError) as there:
        GymEnv(task, 1, Path(sys.executable))
    assert str(there.value) == message.replace(task, f"{task} in {sys.executable}", 1)


@pytest.mark.parametrize(("name", "what"), [("Spoilt", "reward"), ("Unseen", "observation")])
def test_non_finite_reward_or_observation_raises(name: str, what: str, tmp_path: Path) -> None:
    env = GymEnv(NAME.format(name), 2)
    env.reset(seed=3)
    still = torch.zeros(2, 2)
    for _ in range(2):
        env.step(still)
    with pytest.raises(UserError, match=rf"toy_envs:{name}-v0: copy 0 of 2 returned {what} with NaN .* at its step 3;"):
        env.step(still)
    words = ["train", NAME.format(name), "--recipe", "sac", "--training.steps", "20", "--out", str(tmp_path / "run")]
    assert main(words) == 1 and not (tmp_path / "run" / "bundle").exists()


@pytest.mark.parametrize("python", [None, Path(sys.executable)])
def test_frames_of_the_current_state(python: Path | None) -> None:
    env = GymEnv(NAME.format("Drawn"), 1, python, filmed=True)
    x = float(played(env)[-1][0]["observation.state"][0, 0])
    frame = env.frame()
    assert frame.shape == (32, 48, 3) and frame.dtype == np.uint8 and abs(frame.astype(float) - 100 - 10 * x).max() < 1
    env.close()
    with pytest.raises(ConfigError, match="'toy_envs:Toy-v0' cannot be filmed: "):
        GymEnv(NAME.format("Toy"), 1, python, filmed=True)


def test_camera_follows_a_running_robot() -> None:
    """The cheetah is the only brown object."""
    env = GymEnv("gym:HalfCheetah-v5", 1, filmed=True)
    env.reset(seed=0)
    robot = env.batch.envs[0].unwrapped  # type: ignore[union-attr]
    for metres in (0.0, 100.0):
        robot.set_state(robot.init_qpos + metres * (np.arange(9) == 0), robot.init_qvel)
        frame = env.frame().astype(int)
        assert (frame[..., 0] - frame[..., 2] > 30).mean() > 0.005, f"not seen {metres} m from the start"
    env.close()


def test_video_of_a_gymnasium_environment(tmp_path: Path) -> None:
    film = tmp_path / "toy.mp4"
    words = f"evaluate random:{NAME.format('Drawn')} --episodes 1 --num-envs 1 --video-episodes 2".split()
    assert main([*words, "--video", str(film)]) == 0
    with av.open(str(film)) as found:
        frames = [frame.to_ndarray(format="rgb24") for frame in found.decode(video=0)]
    assert 4 <= len(frames) <= 14 and frames[0].shape == (32, 48, 3)
    assert len({round(float(frame.mean())) for frame in frames}) > 2, "frames differ"


def test_missing_python_and_killed_process_raise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--env-python .*nowhere/python"):
        GymEnv(NAME.format("Toy"), 1, tmp_path / "nowhere" / "python")
    env = GymEnv(NAME.format("Toy"), 2, Path(sys.executable))
    played(env, 2)
    os.kill(env.batch.process.pid, signal.SIGKILL)
    with pytest.raises(UserError) as error:
        for _ in range(3):
            env.step(torch.zeros(2, 2))
    assert "-9" in str(error.value) and sys.executable in str(error.value) and "\n" not in str(error.value)
    env.close()


def test_resume_truncates_the_running_episodes(agent: Build, run: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[Any] = []
    replay = off_policy.Replay
    monkeypatch.setattr(off_policy, "Replay", lambda *words: stored.append(replay(*words)) or stored[-1])

    def train(steps: int, resume: bool) -> Any:
        learner = agent(GaussianPolicy(Size(2, 2), GaussianConfig(hidden=(8,), std=0.1)), n_step=2, value_low=-99.0)
        config = OffPolicyConfig(steps, num_envs=2, batch=8, warmup=10, learning_starts=10, capacity=400, log_every=20)
        with run(resume=resume) as folder:
            env = GymEnv(NAME.format("Silent"), 2)
            train_off_policy(env, learner, None, TaskReward(), config, folder, 1, lambda *_: None)
        return learner

    first = train(30, resume=False)
    updates = first.updates.critic
    head = stored[-1].head.clone()
    second = train(60, resume=True)
    one, two = stored
    before = [int(h) - 1 for h in head]
    assert (~one.flags["last"][[0, 1], before] & one.flags["starts"][[0, 1], before]).any(), "some were running"
    assert two.transitions == 60 and second.updates.critic > updates > 0
    for lane in range(2):
        end = int(head[lane])
        running = bool(one.flags["starts"][lane, end - 1] & ~one.flags["last"][lane, end - 1])
        assert bool(two.flags["last"][lane, end - 1]) == (bool(one.flags["last"][lane, end - 1]) or running)
        if running:
            assert not two.flags["starts"][lane, end], "row of the final observation"
            assert not two.flags["terminated"][lane, end - 1], "truncated, not terminated"
        assert torch.equal(two.columns["action"][lane, :end], one.columns["action"][lane, :end])
