"""SmolVLA from LeRobot's checkpoints, against a second implementation of its equations.

LeRobot cannot be installed beside these tests, so `Reference` implements its published equations on a checkpoint's raw
tensors: one sample at a time, without padding, with all tokens in one attention, where the policy caches keys and
values. Only the vision tower is transformers' in both. Names and shapes of the checkpoint are written by hand as in
LeRobot. No checkpoint written by LeRobot has been compared.
"""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import interpolate, silu

from policies.bundle import Bundle, load_bundle, save_bundle
from policies.vla.lerobot_smolvla import load_smolvla
from policies.vla.smolvla import SmolVLAPolicy
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.util.errors import ConfigError
from tests.policies.vla import conftest
from tests.policies.vla.conftest import FRONT, SIZE, WRIST

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[vla]'")

TEXTS = ["put the red ball next to the cube", "lift it", "touch the ball"]
HIDDEN, HEADS, GROUPS, HEAD, LAYERS, WIDTH, INNER, SIDE, HORIZON = 32, 4, 2, 8, 3, 24, 256, 16, 5
"""Sizes of the tiny SmolVLM and its expert, which has three quarters of the width."""
STATS = {"state": ([0.3, -0.2, 1.0], [0.5, 2.0, 1.5]), "action": ([0.1, -0.3], [0.4, 0.2])}
Models = Callable[..., Path]


def observe(n: int = 3) -> dict[str, Tensor]:
    return conftest.observe(n, texts=TEXTS[:n])


def expert_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of LeRobot's weights besides SmolVLM, by LeRobot's names."""
    across = GROUPS * HEAD
    shapes: dict[str, tuple[int, ...]] = {"vlm_with_expert.lm_expert.norm.weight": (WIDTH,)}
    for k in range(LAYERS):
        inside = WIDTH if k % 2 == 0 else across  # even layers have self-attention, odd layers cross-attention
        layer = {
            "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,),
            "self_attn.q_proj": (HEADS * HEAD, WIDTH), "self_attn.k_proj": (across, inside),
            "self_attn.v_proj": (across, inside), "self_attn.o_proj": (WIDTH, HEADS * HEAD),
            "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER),
        }  # fmt: skip
        shapes |= {f"vlm_with_expert.lm_expert.layers.{k}.{name}.weight": shape for name, shape in layer.items()}
    linear = {
        "state_proj": (HIDDEN, 32), "action_in_proj": (WIDTH, 32), "action_out_proj": (32, WIDTH),
        "action_time_mlp_in": (WIDTH, 2 * WIDTH), "action_time_mlp_out": (WIDTH, WIDTH),
    }  # fmt: skip
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


@pytest.fixture
def checkpoint(tiny_model: Models, tmp_path: Path) -> Path:
    """Return a checkpoint folder in LeRobot's format."""
    folder, rng = tmp_path / "checkpoint", torch.Generator().manual_seed(0)
    folder.mkdir()
    weights = {}
    for name, shape in expert_shapes().items():
        drawn = torch.randn(shape, generator=rng)
        weights[f"model.{name}"] = 1 + 0.3 * drawn if "norm" in name else drawn / math.sqrt(shape[-1])
    vlm = load_file(tiny_model("smolvlm") / "model.safetensors")
    weights |= {f"model.vlm_with_expert.vlm.{name}": value for name, value in vlm.items()}
    save_file(weights, folder / "model.safetensors")
    visual = {key: {"type": "VISUAL", "shape": [3, 16, 24]} for key in (WRIST, FRONT)}
    settings = {
        "type": "smolvla", "vlm_model_name": str(tiny_model("smolvlm")), "chunk_size": HORIZON, "n_action_steps": 3,
        "num_vlm_layers": LAYERS, "resize_imgs_with_padding": [SIDE, SIDE], "tokenizer_max_length": 48,
        "input_features": {"observation.state": {"type": "STATE", "shape": [3]}} | visual,
        "output_features": {"action": {"type": "ACTION", "shape": [2]}},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    state, action = ([torch.tensor(v) for v in STATS[name]] for name in ("state", "action"))
    save_file(
        {"observation.state.mean": state[0], "observation.state.std": state[1], "action.mean": action[0],
         "action.std": action[1]},
        folder / "policy_preprocessor_step_5_normalizer_processor.safetensors",
    )  # fmt: skip
    return folder


class Reference:
    """SmolVLA's equations on one sample."""

    def __init__(self, checkpoint: Path, model: Path):
        self.weights = {k.removeprefix("model."): v for k, v in load_file(checkpoint / "model.safetensors").items()}
        self.vlm = transformers.AutoModel.from_pretrained(model)
        self.words = transformers.AutoTokenizer.from_pretrained(model)

    def linear(self, x: Tensor, name: str) -> Tensor:
        bias = self.weights.get(f"{name}.bias")
        x = x @ self.weights[f"{name}.weight"].T
        return x if bias is None else x + bias

    def norm(self, x: Tensor, name: str) -> Tensor:
        share = x / (x.square().mean(-1, keepdim=True) + self.vlm.config.text_config.rms_norm_eps).sqrt()
        return share * self.weights[f"{name}.weight"]

    def rotate(self, x: Tensor, first: int) -> Tensor:
        """Rotate x (N, heads HEAD) at positions first, first + 1, ...; each head's halves are real and imaginary."""
        x = x.unflatten(-1, (-1, HEAD))
        frequency = 10_000 ** (-2 * torch.arange(HEAD // 2) / HEAD)
        turn = torch.polar(torch.ones(()), (first + torch.arange(len(x)))[:, None, None] * frequency)
        turned = torch.complex(*x.chunk(2, -1)) * turn
        return torch.cat([turned.real, turned.imag], -1).flatten(1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        outputs = []
        for head in range(HEADS):
            own = slice(head * HEAD, (head + 1) * HEAD)
            group = head // (HEADS // GROUPS)
            shared = slice(group * HEAD, (group + 1) * HEAD)
            scores = q[:, own] @ k[:, shared].T / math.sqrt(HEAD)
            outputs.append(scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v[:, shared])
        return torch.cat(outputs, 1)

    def finish(self, x: Tensor, attended: Tensor, name: str) -> Tensor:
        x = x + self.linear(attended, f"{name}.self_attn.o_proj")
        y = self.norm(x, f"{name}.post_attention_layernorm")
        gate = silu(self.linear(y, f"{name}.mlp.gate_proj"))
        return x + self.linear(gate * self.linear(y, f"{name}.mlp.up_proj"), f"{name}.mlp.down_proj")

    def prefix(self, observation: dict[str, Tensor], text: str) -> Tensor:
        pictures = []
        for key in (WRIST, FRONT):  # the order of the checkpoint
            picture = observation[key].permute(2, 0, 1)[None].float() / 255
            ratio = max(picture.shape[2] / SIDE, picture.shape[3] / SIDE)
            small = interpolate(picture, tuple(int(n / ratio) for n in picture.shape[2:]), mode="bilinear")
            whole = torch.zeros(1, 3, SIDE, SIDE)
            whole[:, :, SIDE - small.shape[2] :, SIDE - small.shape[3] :] = small
            pictures.append(self.vlm.get_image_features((2 * whole - 1)[None]).pooler_output[0])
        ids = self.words(f"{text}\n")["input_ids"]
        words = self.weights["vlm_with_expert.vlm.model.text_model.embed_tokens.weight"][ids]
        state = (observation["observation.state"] - torch.tensor(STATS["state"][0])) / torch.tensor(STATS["state"][1])
        state = self.linear(torch.cat([state, torch.zeros(32 - 3)]), "state_proj")
        return torch.cat([math.sqrt(HIDDEN) * torch.cat(pictures), math.sqrt(HIDDEN) * words, state[None]])

    def velocity(self, x: Tensor, noisy: Tensor, time: float) -> Tensor:
        period = torch.tensor([0.004 * 1000 ** (k / (WIDTH // 2 - 1)) for k in range(WIDTH // 2)], dtype=torch.float64)
        angle = 2 * math.pi * time / period
        when = torch.cat([angle.sin(), angle.cos()]).float().expand(HORIZON, -1)
        y = torch.cat([self.linear(noisy, "action_in_proj"), when], 1)
        y = self.linear(silu(self.linear(y, "action_time_mlp_in")), "action_time_mlp_out")
        n = len(x)
        block = torch.tensor([0] * (n - 1) + list(range(1, HORIZON + 2)))
        mask = block[None] <= block[:, None]
        for k in range(LAYERS):
            names = [f"vlm_with_expert.vlm.model.text_model.layers.{k}", f"vlm_with_expert.lm_expert.layers.{k}"]
            parts = [self.norm(t, f"{name}.input_layernorm") for t, name in zip((x, y), names, strict=True)]
            q, key, value = (self.linear(parts[0], f"{names[0]}.self_attn.{w}_proj") for w in "qkv")
            if k % 2 == 0:
                q2, key2, value2 = (self.linear(parts[1], f"{names[1]}.self_attn.{w}_proj") for w in "qkv")
                q, key, value = torch.cat([q, q2]), torch.cat([key, key2]), torch.cat([value, value2])
                out = self.attend(self.rotate(q, 0), self.rotate(key, 0), value, mask)
                first, second = out[:n], out[n:]
            else:
                key = self.rotate(key, 0)
                first = self.attend(self.rotate(q, 0), key, value, mask[:n, :n])
                q = self.rotate(self.linear(parts[1], f"{names[1]}.self_attn.q_proj"), 0)
                key, value = (self.linear(t, f"{names[1]}.self_attn.{w}_proj") for t, w in ((key, "k"), (value, "v")))
                second = self.attend(q, key, value, torch.ones(HORIZON, n, dtype=torch.bool))
            x, y = self.finish(x, first, names[0]), self.finish(y, second, names[1])
        return self.linear(self.norm(y, "vlm_with_expert.lm_expert.norm"), "action_out_proj")

    @torch.no_grad()
    def actions(self, observation: dict[str, Tensor], text: str, noise: Tensor) -> Tensor:
        prefix, x = self.prefix(observation, text), noise
        for k in range(10):
            x = x - 0.1 * self.velocity(prefix, x, 1 - 0.1 * k)
        return x[:, :2] * torch.tensor(STATS["action"][1]) + torch.tensor(STATS["action"][0])


def noise(n: int = 3) -> Tensor:
    return torch.randn(n, HORIZON, 32, generator=torch.Generator().manual_seed(1))


def test_actions_and_loss_equal_the_reference(checkpoint: Path, tiny_model: Models) -> None:
    """The test repeats the draw of noise and time in the loss."""
    policy, reference = load_smolvla(checkpoint, SIZE), Reference(checkpoint, tiny_model("smolvlm"))
    assert (policy.horizon, policy.execute) == (HORIZON, 3)
    found = policy.chunk(observe(), noise())
    for k, text in enumerate(TEXTS):
        wanted = reference.actions({name: value[k] for name, value in observe().items()}, text, noise()[k])
        assert torch.allclose(found[k], wanted, atol=2e-5), text
        assert wanted.std() > 0.1
    observation, chunk = observe(1), torch.tensor([[0.2, -0.4]]).expand(1, HORIZON, 2)
    rng = torch.Generator().manual_seed(5)
    drawn, time = torch.randn(1, HORIZON, 32, generator=rng), 0.001 + 0.999 * torch.rand(1, generator=rng) ** (2 / 3)
    actions = torch.zeros(HORIZON, 32)
    actions[:, :2] = (chunk[0] - torch.tensor(STATS["action"][0])) / torch.tensor(STATS["action"][1])
    prefix = reference.prefix({name: value[0] for name, value in observation.items()}, TEXTS[0])
    velocity = reference.velocity(prefix, float(time) * drawn[0] + (1 - float(time)) * actions, float(time))
    loss = policy.loss(observation, chunk, torch.Generator().manual_seed(5))
    assert torch.allclose(loss, (velocity - (drawn[0] - actions)).square().mean(), rtol=1e-4)


def test_old_checkpoints_with_statistics_among_the_weights_are_read(checkpoint: Path) -> None:
    wanted = load_smolvla(checkpoint, SIZE).chunk(observe(), noise())
    file = next(checkpoint.glob("policy_*"))
    weights, statistics = load_file(checkpoint / "model.safetensors"), load_file(file)
    file.unlink()
    weights = {name.replace("model.", "model._orig_mod.", 1): value for name, value in weights.items()}
    for what in ("mean", "std"):
        weights[f"normalize_inputs.buffer_observation_state.{what}"] = statistics[f"observation.state.{what}"]
        weights[f"unnormalize_outputs.so100_buffer_action.{what}"] = statistics[f"action.{what}"]
        weights[f"normalize_targets.buffer_action.{what}"] = statistics[f"action.{what}"].clone()
    save_file(weights, checkpoint / "model.safetensors")
    assert torch.equal(load_smolvla(checkpoint, SIZE).chunk(observe(), noise()), wanted)


def test_only_the_expert_learns_and_bundle_round_trip(checkpoint: Path, tmp_path: Path) -> None:
    policy = load_smolvla(checkpoint, SIZE).train()
    before = {name: value.clone() for name, value in policy.network.vlm.state_dict().items()}
    agent, rng = Cloning(policy, CloningConfig(lr=1e-3, warmup=0), 40), torch.Generator().manual_seed(0)
    columns = observe() | {"action": torch.full((3, HORIZON, 2), 0.3)}
    losses = [float(agent.update(columns, rng)["bc/loss"]) for _ in range(40)]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    agent.finish()
    assert all(torch.equal(value, before[name]) for name, value in policy.network.vlm.state_dict().items())
    save_bundle(Bundle(policy, None, {}, task="gym:one"), tmp_path / "bundle")
    loaded = load_bundle(tmp_path / "bundle").policy
    assert isinstance(loaded, SmolVLAPolicy) and loaded.config == policy.config
    acts = [p.act(observe(), torch.Generator().manual_seed(1)) for p in (policy, loaded)]
    assert torch.equal(*acts) and acts[0].shape == (3, HORIZON, 2) and acts[0].abs().max() <= 1


def change(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings | changes))

    return edit


def drop_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.action_in_proj.bias"]
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(("damage", "message"), [
    (shutil.rmtree, "config.json cannot be read"),
    (change(type="act"), "no checkpoint of SmolVLA"),
    (change(adapt_to_pi_aloha=True), "adapt_to_pi_aloha True, which is not supported"),
    (change(input_features=None), "does not say its input_features"),
    (change(output_features={"action": {"shape": [2]}}), "does not say its output_features"),
    (change(num_expert_layers=2), "num_expert_layers 2"),
    (change(normalization_mapping={"STATE": "MIN_MAX"}), "normalizes by"),
    (change(resize_imgs_with_padding=None), "resize_imgs_with_padding"),
    (change(output_features={"action": {"type": "ACTION", "shape": [7]}}), "3 states and 7 actions"),
    (change(input_features={"observation.state": {"type": "STATE", "shape": [3]},
                            "observation.images.top": {"type": "VISUAL"}}), "images.top, which the task lacks"),
    (change(expert_width_multiplier=0.5), "another model"),
    (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
    (drop_a_weight, "lacks 1 weights of SmolVLA, first network.action_in_proj.bias"),
])  # fmt: skip
def test_unsupported_checkpoints_are_refused(damage: Callable[[Path], None], message: str, checkpoint: Path) -> None:
    damage(checkpoint)
    with pytest.raises(ConfigError, match=message):
        load_smolvla(checkpoint, SIZE)
