"""`robot-rl prompt`: store a prompt in a policy of recipe hilp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from robot_rl.cli.options import BundlePath, Json
from robot_rl.util.limits import NonNegativeInt

if TYPE_CHECKING:
    from torch import Tensor

    from policies.bundle import Bundle
    from robot_rl.interface.environment import EnvInfo


@dataclass
class Prompt:
    """Give a policy of recipe hilp something else to do than to reach the goal in its state, without training: collect
    a reward, be in a place, or visit states of a sequence. Writes a bundle with the same weights."""

    bundle: BundlePath
    dataset: Path
    """Recorded episodes with the policy's state, such as those of its training."""
    out: Path
    """Folder of the new bundle."""
    reward: Literal["success", "task"] | None = None
    """Collect the dataset's recorded reward: success, or the task's reward."""
    within: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Be where a number of the state is within a range, position.x=0.5:1; may be repeated, then all must hold."""
    states: Path | None = None
    """Visit the states of a sequence: dataset whose actions are not used. Each state is replaced by the nearest one in
    --dataset."""
    episode: NonNegativeInt = 0
    """Number of the episode in --states."""
    ahead: NonNegativeInt = 0
    """With --states: follow them in order, by moving to the state this many places after the nearest one. 0: stay as
    close as possible to all of them at once."""
    features: Literal["places", "motions"] = "places"
    """What explains the reward: the embedding of the state that a step reaches, or its change in the step as in the
    paper."""
    json: Json = False

    def run(self) -> int:
        import torch

        from policies.bundle import bundle_folder, load_bundle, save_bundle
        from policies.errors import WrongBundle
        from policies.hilbert import HilbertPolicy
        from robot_rl.cli.console import show
        from robot_rl.util.errors import ConfigError

        given = [name for name in ("reward", "within", "states") if getattr(self, name)]
        if len(given) != 1:
            named = " and ".join(f"--{name}" for name in given) or "no prompt"
            raise ConfigError(f"{named}: give one of --reward, --within and --states")
        if (self.ahead or self.episode) and not self.states:
            raise ConfigError("--ahead and --episode are for --states; leave them out")
        if self.features != "places" and self.states:
            raise ConfigError("--features is for --reward and --within; leave it out")
        bundle = load_bundle(self.bundle)
        if not isinstance(bundle.policy, HilbertPolicy):
            raise WrongBundle(
                f"{bundle.label} holds a policy of class {bundle.policy.class_name!r}, which follows no directions; "
                "take a bundle of recipe hilp"
            )
        if self.out.resolve() in (bundle_folder(self.bundle).resolve(), self.bundle.resolve()):
            raise ConfigError(f"--out {self.out} is the bundle to read; name another folder")
        torch.set_num_threads(1)
        found = self._prompt(bundle)
        points = max(1, self.ahead) if self.states else 0
        bundle.policy = bundle.policy.prompted(found.pop("stored"), points)
        said = {"reward": self.reward, "within": list(self.within), "states": self.states and str(self.states)}
        bundle.provenance |= {"prompt": {name: said[name] for name in given} | found | {"dataset": str(self.dataset)}}
        save_bundle(bundle, self.out)
        show({"bundle": str(self.out), "task": bundle.task} | found, self.json, "prompt")
        return 0

    def _prompt(self, bundle: Bundle) -> dict[str, Any]:
        """Return the `stored` vectors of the prompt, and what to report of them."""
        import torch

        from robot_rl.interface.observation_spec import STATE
        from robot_rl.learning import prompts
        from robot_rl.util.errors import ConfigError

        policy: Any = bundle.policy
        episodes = read(self.dataset, bundle, self.reward or "success")
        states = [episode[STATE] for episode in episodes]
        found: dict[str, Any] = {"steps": sum(map(len, states))}
        if self.states:
            sequences = read(self.states, bundle, "success")
            if self.episode >= len(sequences):
                raise ConfigError(f"--episode {self.episode}: {self.states} has episodes 0 to {len(sequences) - 1}")
            imagined = sequences[self.episode][STATE]
            make = prompts.of_sequence if self.ahead else prompts.of_set
            return found | {"imagined": len(imagined), "stored": make(policy, imagined, torch.cat(states))}
        rewards = [episode["reward"] for episode in episodes]
        if self.within:
            inside = [is_inside(rows, self.within, bundle.info) for rows in states]
            rewards = [torch.cat([rows[1:], rows[-1:]]) for rows in inside]  # of the state after each step
        direction = prompts.of_reward(policy, states, rewards, self.features)
        found |= {"mean_reward": float(torch.cat(rewards).mean()), "explained": direction.explained}
        return found | {"stored": direction.skill[None]}


def read(path: Path, bundle: Bundle, reward: str) -> list[dict[str, Tensor]]:
    """Return all episodes of a dataset that fits the bundle's policy, see `load_episodes`."""
    from robot_rl.data import Dataset
    from robot_rl.data.recording import load_episodes
    from robot_rl.data.view import DatasetView

    data = Dataset(path, DatasetView.inherited(bundle.provenance, Dataset(path).features))
    return load_episodes(data, bundle.info, reward, successes=False)


def is_inside(state: Tensor, ranges: tuple[str, ...], info: EnvInfo) -> Tensor:
    """Return 1 for states (T, D) whose named numbers are within all `ranges`, written NAME=LOW:HIGH, else 0; (T,)."""
    import torch

    from robot_rl.util.errors import ConfigError, UnknownName

    within = torch.ones(len(state), dtype=torch.bool)
    for text in ranges:
        name, _, ends = text.partition("=")
        try:
            low, high = map(float, ends.split(":"))
        except ValueError:
            raise ConfigError(f"--within {text}: write NAME=LOW:HIGH, as in position.x=0.5:1") from None
        if name not in info.state.names:
            raise UnknownName("number of observation.state for --within:", name, info.state.names)
        values = state[:, info.state.names.index(name)]
        within &= (values >= low) & (values <= high)
    return within.float()
