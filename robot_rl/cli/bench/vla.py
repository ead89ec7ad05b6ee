"""`robot-rl bench vla`: measure a vision-language-action model with 500M parameters on a GPU."""

import time
from dataclasses import dataclass
from typing import Any

from robot_rl.cli.options import Json
from robot_rl.util.limits import NonNegativeInt, PositiveInt

SMOLVLM: dict[str, dict[str, Any]] = {
    "text_config": {
        "model_type": "llama", "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32,
        "num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 64, "vocab_size": 49280, "pad_token_id": 2,
    },
    "vision_config": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "image_size": 512, "patch_size": 16,
    },
}  # fmt: skip
"""Network sizes of SmolVLM2-500M. SmolVLA (Shukor et al. 2025, arXiv 2506.01844) uses the first 16 text layers."""


@dataclass
class Vla:
    """Measure training speed, memory and the inference latency of one action chunk for SmolVLA's network.

    The weights are random: speed does not depend on them. On a machine without a GPU, nothing is measured."""

    batch: PositiveInt = 8
    """Batch size of a training step."""
    steps: PositiveInt = 20
    """Number of timed training steps."""
    chunks: PositiveInt = 100
    """Number of timed chunk inferences."""
    cameras: PositiveInt = 2
    """Number of camera images per observation, 512x512 pixels each."""
    words: PositiveInt = 16
    """Number of tokens of the instruction."""
    device: str = "auto"
    """Torch device: cuda, cuda:1 and the like, or auto for cuda if available."""
    threads: NonNegativeInt = 0
    """Number of torch threads; 0: torch's default number."""
    json: Json = False

    def run(self) -> int:
        import torch

        from policies.networks.pretrained import require
        from robot_rl.cli.console import show
        from robot_rl.training.run import provenance
        from robot_rl.util.devices import find_device

        require("transformers")
        device = find_device(self.device)
        if device == "cpu":
            show({"skipped": "there is no GPU here; a half-billion-weight model is not for a CPU"}, self.json, "vla")
            return 0
        if self.threads:
            torch.set_num_threads(self.threads)
        found = self.measure(torch.device(device))
        show(found | ({"provenance": provenance()} if self.json else {}), self.json, "vla")
        return 0

    def measure(self, device: Any, sizes: dict[str, dict[str, Any]] = SMOLVLM, layers: int = 16) -> dict[str, Any]:
        """Return parameter counts (millions), training steps/s, memory (GB) and chunk latencies (ms) on a device."""
        import torch

        from policies.networks.pretrained import require
        from policies.vla.smolvla import SmolVLAConfig, SmolVLANetwork

        gpu, cuda = device.type != "cpu", device.type == "cuda"
        described = require("transformers").SmolVLMConfig(scale_factor=4, **sizes)
        described.text_config.num_hidden_layers = layers
        config = SmolVLAConfig()
        with device:
            network = SmolVLANetwork(config, described)
        network.vlm.requires_grad_(False)
        trained = [p for p in network.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, 1e-4)
        side, generator = described.vision_config.image_size, torch.Generator(device).manual_seed(0)

        def read(count: int) -> Any:
            pictures = torch.rand(count, self.cameras, 3, side, side, generator=generator, device=device)
            ids = torch.randint(3, 100, (count, self.words), generator=generator, device=device)
            state = torch.zeros(count, config.state_size, device=device)
            return network.read(pictures, ids, torch.ones_like(ids, dtype=torch.bool), state)

        def now() -> float:
            if gpu:
                torch.accelerator.synchronize(device)
            return time.perf_counter()

        def learn() -> None:
            noisy = torch.randn(self.batch, config.horizon, config.action_size, generator=generator, device=device)
            with torch.autocast(device.type, torch.bfloat16):
                loss = network.velocity(noisy, torch.rand(self.batch, device=device), *read(self.batch)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        def infer() -> None:
            x = torch.randn(1, config.horizon, config.action_size, generator=generator, device=device)
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
                seen = read(1)
                for k in range(config.sample_steps):
                    share = x.new_full((1,), 1 - k / config.sample_steps)
                    x = x - network.velocity(x, share, *seen).float() / config.sample_steps

        for _ in range(2):
            learn()
            infer()
        begun = now()
        for _ in range(self.steps):
            learn()
        speed = self.steps / (now() - begun)
        times = []
        for _ in range(self.chunks):
            begun = now()
            infer()
            times.append(1e3 * (now() - begun))
        p50, p99 = torch.tensor(times).quantile(torch.tensor([0.5, 0.99])).tolist()
        return {
            "device": torch.cuda.get_device_name(device) if cuda else str(device),
            "weights_millions": round(sum(p.numel() for p in network.parameters()) / 1e6),
            "trained_millions": round(sum(p.numel() for p in trained) / 1e6), "batch": self.batch,
            "training_steps_per_second": speed,
            "memory_gb": torch.cuda.max_memory_allocated(device) / 1e9 if cuda else None, "chunk_ms_p50": p50,
            "chunk_ms_p99": p99,
        }  # fmt: skip
