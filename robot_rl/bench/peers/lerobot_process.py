"""LeRobot's trainer, or one of its policies, in a process of LeRobot's own Python: see `lerobot`.

`PYTHON -I lerobot_process.py train FLAGS` is `lerobot-train FLAGS`, which also writes its metrics to the standard
output, one JSON object per line. `act JSON` answers observations with chunks of actions. Both end when the standard
input is closed, so also if the process that holds it is killed. Only LeRobot and what it needs are imported. A message
is its length (8 bytes) and tensors by name, as safetensors writes them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import load, save
from torch import Tensor

STATS = "stats/"
"""Begin of the names of the statistics, which are followed by FEATURE/STATISTIC; other names are those of weights."""


def send(stream: BinaryIO, tensors: dict[str, Tensor]) -> None:
    """Write a message."""
    body = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    stream.write(struct.pack("<Q", len(body)) + body)
    stream.flush()


def receive(stream: BinaryIO) -> dict[str, Tensor]:
    """Read a message; raises EOFError at the end of the stream."""
    head = stream.read(8)
    body = stream.read(struct.unpack("<Q", head)[0]) if len(head) == 8 else b""
    if not body:
        raise EOFError
    return load(body)


def define_operators() -> torch.library.Library | None:
    """Declare the operators that torchvision looks up at its import if its own library cannot be loaded, as that of a
    wheel for CUDA beside a torch for CPUs. Without pictures none of them runs. They last as long as the result."""
    package = importlib.util.find_spec("torchvision")
    try:
        if package and package.origin:
            torch.ops.load_library(str(Path(package.origin).with_name("_C.so")))
        return None
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library


class Remembered(torch.utils.data.Dataset):
    """Dataset of LeRobot whose samples are read once, since reading takes longer than learning from state alone."""

    def __init__(self, data: Any):
        self.data, self.known = data, dict[int, Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        if index not in self.known:
            self.known[index] = self.data[index]
        return self.known[index]


def train(out: BinaryIO) -> None:
    """Run LeRobot's trainer with the flags of this process."""
    import logging

    from lerobot.scripts import lerobot_train
    from lerobot.utils.logging_utils import MetricsTracker

    def tell(record: logging.LogRecord) -> bool:
        if isinstance(record.msg, MetricsTracker):
            out.write(json.dumps(record.msg.to_dict()).encode() + b"\n")
            out.flush()
        return True

    def end_with_parent() -> None:
        while os.read(0, 1):  # not sys.stdin, which a daemon thread may not hold when the interpreter ends
            pass
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.getLogger().addFilter(tell)
    make: Callable[[Any], Any] = lerobot_train.make_dataset
    lerobot_train.make_dataset = lambda config: Remembered(make(config))
    lerobot_train.main()


def load_policy(settings: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Any, Any, Any]:
    """Return a policy of LeRobot with the weights, its preprocessor and its postprocessor with the statistics."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

    kinds = {"observation.state": FeatureType.STATE, "observation.environment_state": FeatureType.ENV,
             "action": FeatureType.ACTION}  # fmt: skip
    features = {k: PolicyFeature(type=kinds[k], shape=(size,)) for k, size in settings["features"].items()}
    action = {"action": features.pop("action")}
    config = make_policy_config(
        settings["kind"], input_features=features, output_features=action, device=settings["device"],
        **settings["options"],
    )  # fmt: skip
    policy = get_policy_class(settings["kind"])(config)
    stats: dict[str, dict[str, Tensor]] = {}
    weights = {}
    for name, tensor in tensors.items():
        if name.startswith(STATS):
            _, feature, statistic = name.split("/")
            stats.setdefault(feature, {})[statistic] = tensor
        else:
            weights[name] = tensor
    policy.load_state_dict(weights)
    return policy.to(settings["device"]).eval(), *make_pre_post_processors(config, dataset_stats=stats)


def chunks(settings: dict[str, Any], requests: BinaryIO) -> Iterator[Tensor]:
    """Yield a chunk (B, n_action_steps, A) for every observation: all actions that the policy takes from one inference.
    """
    policy, before, after = load_policy(settings, receive(requests))
    while True:
        request = receive(requests)
        torch.manual_seed(int(request.pop("seed")))
        policy.reset()
        seen = before(request)
        with torch.no_grad():
            actions = [after(policy.select_action(dict(seen))) for _ in range(policy.config.n_action_steps)]
        yield torch.stack(actions, 1).float().cpu()


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what LeRobot prints must not mix with the answers
    kept = define_operators()  # noqa: F841
    task = sys.argv.pop(1)
    if task == "train":
        train(out)
        return
    try:
        for actions in chunks(json.loads(sys.argv[1]), sys.stdin.buffer):
            send(out, {"actions": actions})
    except EOFError:
        return


if __name__ == "__main__":
    main()
