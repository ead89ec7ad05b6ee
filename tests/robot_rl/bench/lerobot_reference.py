"""Act as LeRobot does with a checkpoint: `PYTHON -I lerobot_reference.py lerobot_process.py CHECKPOINT FOLDER`."""

import importlib.util
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

spec = importlib.util.spec_from_file_location("lerobot_process", sys.argv[1])
assert spec and spec.loader
process = importlib.util.module_from_spec(spec)
spec.loader.exec_module(process)
kept = process.define_operators()

from lerobot.configs.policies import PreTrainedConfig  # noqa: E402
from lerobot.policies.factory import get_policy_class, make_pre_post_processors  # noqa: E402

checkpoint, folder = sys.argv[2], Path(sys.argv[3])
config = PreTrainedConfig.from_pretrained(checkpoint)
policy = get_policy_class(config.type).from_pretrained(checkpoint, config=config).eval()
before, after = make_pre_post_processors(config, pretrained_path=checkpoint)
asked = load_file(folder / "asked.safetensors")
torch.manual_seed(int(asked.pop("seed")))
seen = before(asked)
actions = [after(policy.select_action(dict(seen))) for _ in range(config.n_action_steps)]
save_file({"actions": torch.stack(actions, 1).contiguous()}, folder / "actions.safetensors")
