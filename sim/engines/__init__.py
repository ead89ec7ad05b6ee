"""Physics engines by name."""

from robot_rl.util.registry import Registry

engines = Registry(
    "engine",
    {
        "mujoco": ("sim.engines.mujoco:MujocoEngine", "mujoco.Batch on the CPU, native threads"),
        "genesis": ("sim.engines.genesis:GenesisEngine", "Genesis on the CPU or a CUDA GPU"),
        "warp": ("sim.engines.warp:WarpEngine", "MuJoCo Warp on a CUDA GPU, or slowly on the CPU"),
    },
)
