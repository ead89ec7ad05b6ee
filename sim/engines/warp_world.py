"""n copies of a compiled model in MuJoCo Warp: torch tensors that share memory with the solver, and a captured step."""

import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from robot_rl.util.devices import find_device
from robot_rl.util.errors import ConfigError, UserError
from sim.rendering.gl import batch, mujoco

STATE = ("time", "qpos", "qvel", "act", "history", "qacc_warmstart", "ctrl", "mocap_pos", "mocap_quat")
"""State of MuJoCo, by which all later steps are determined, without forces and constraints that nobody switches."""
VIEWED = ("sensordata", "actuator_force")
"""Results of the last step that views read."""
CONTACTS, OBJECT_CONTACTS = 32, 16
"""Contacts for which a world has room: of the robot, and of each object in addition. A full gripper has 32."""
_ROWS = {mujoco.mjtCone.mjCONE_PYRAMIDAL: (1, 4, 6, 10), mujoco.mjtCone.mjCONE_ELLIPTIC: (1, 3, 4, 6)}
"""Constraints of a contact with 1, 3, 4 and 6 dimensions, by cone."""
_UNUSED = ("bvh_aabb", "dof_M0", "dof_length", "stat.extent", "stat.center", "stat.meanmass", "stat.meansize",
           "stat.meaninertia")  # fmt: skip
"""Model fields that MuJoCo derives from parameters and that Warp's steps do not read."""
SPARE = 0.9
"""Share of a GPU's free memory that worlds may take; the rest is for actions, observations and a policy."""
_PROBES = (32, 64)
"""Numbers of worlds that are built to measure the memory of one."""


def start(device: str) -> tuple[Any, Any, torch.device]:
    """Import Warp and MuJoCo Warp; return both and the device. Raise ConfigError for an unsupported device, UserError
    if MuJoCo Warp is not installed."""
    found = torch.device(find_device(device))
    if found.type not in ("cpu", "cuda"):
        raise ConfigError(f"engine 'warp' runs on cpu and cuda, not on {device!r}")
    try:
        import mujoco_warp
        import warp
    except ImportError as error:
        raise UserError(f'engine warp needs mujoco-warp ({error}): pip install "robot-rl[warp]"') from None
    warp.config.log_level = warp.LOG_WARNING  # other messages go to stdout
    warp.init()
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", torch.cuda.current_device())
    return warp, mujoco_warp, found


def capacity(model: mujoco.MjModel) -> tuple[int, int]:
    """Return the contacts and the constraints for which a world has room."""
    free = (model.jnt_type == mujoco.mjtJoint.mjJNT_FREE).sum()
    contacts = CONTACTS + OBJECT_CONTACTS * int(free)
    rows = _ROWS[mujoco.mjtCone(model.opt.cone)][(1, 3, 4, 6).index(model.geom_condim.max(initial=1))]
    # A joint has a limit and dry friction; an equality has six rows at most.
    return contacts, contacts * rows + 2 * model.nv + 6 * model.neq + 2 * model.ntendon


class World:
    """Physics of n environments on a CPU or a CUDA GPU, in float32."""

    def __init__(self, model: mujoco.MjModel, num_envs: int, device: str):
        self._warp, self._mjw, self.device = start(device)
        self.model, self.num_envs = model, num_envs
        self._on = self._warp.device_from_torch(self.device)
        try:
            if self.device.type == "cuda":
                self._check_memory(torch.cuda.mem_get_info(self.device)[0])
            self._put, self._data = self._build(num_envs)
        except (NotImplementedError, ValueError) as error:
            raise ConfigError(f"engine 'warp' cannot simulate this scene: {error}; take engine mujoco") from None
        tensor = self._warp.to_torch
        self.state: dict[str, Tensor] = {name: tensor(getattr(self._data, name)) for name in STATE}
        self.views: dict[str, Tensor] = {name: tensor(getattr(self._data, name)) for name in VIEWED}
        self.overflow: Tensor = tensor(self._data.overflow)
        """Bits (n,) of what a world had no room for since its reset, see `full`."""
        bits = self._mjw.OverflowType
        self._full = int(bits.NEFC | bits.NJMAX_NNZ | bits.BROADPHASE | bits.NARROWPHASE | bits.CCD)
        self.fields: dict[str, Tensor] = {}
        """Model fields with one row per environment, by MuJoCo's name and in MuJoCo's shape."""
        known = {f.name for f in fields(self._mjw.Model)} | {f"opt.{f.name}" for f in fields(self._mjw.Option)}
        self.shared = [name for name in sorted(batch.MODEL_FIELDS) if name in known and self._batched(name)]
        """Names of the model fields that may differ between environments."""
        self.fixed = [name for name in sorted(batch.MODEL_FIELDS) if name not in {*self.shared, *_UNUSED}]
        """Names of the model fields that are the same in all environments."""
        self._graph: Any = None

    def _build(self, num_envs: int) -> tuple[Any, Any]:
        """Put the model and `num_envs` worlds on the device."""
        contacts, rows = capacity(self.model)
        with self._warp.ScopedDevice(self._on):
            put = self._mjw.put_model(self.model)
            put.opt.warn_overflow = False  # the warnings are printed, and `full` tells
            # Additions on a GPU are in a random order unless asked otherwise; on the CPU they always are in order.
            put.opt.deterministic = self.device.type == "cuda"
            return put, self._mjw.make_data(self.model, nworld=num_envs, nconmax=contacts, njmax=rows)

    def bytes_per_world(self) -> int:
        """Return the memory of a world, measured on two small sets of worlds with their captured steps."""
        from warp._src.context import runtime  # the only way to read the tracker's numbers

        sizes = []
        for count in _PROBES:
            with self._warp.ScopedMemoryTracker(print=False) as tracker:
                tracker.clear()
                worlds = self._build(count)
                graph = self._capture(*worlds)
                sizes.append(runtime.core.wp_alloc_tracker_get_peak_bytes())
                del worlds, graph
        return math.ceil((sizes[1] - sizes[0]) / (_PROBES[1] - _PROBES[0]))

    def _check_memory(self, free: int) -> None:
        """Raise ConfigError if the worlds need more than `free` bytes."""
        each = self.bytes_per_world()
        fit = int(SPARE * free / each)
        if fit < self.num_envs:
            raise ConfigError(
                f"{self.num_envs} environments need {self.num_envs * each / 2**30:.1f} GiB on {self.device}, of which "
                f"{free / 2**30:.1f} GiB are free; {fit} fit"
            )

    def _array(self, name: str) -> tuple[Any, str, Any]:
        """Return the object that holds a model field, the field's name there and its array."""
        holder, own = (self._put.opt, name[4:]) if name.startswith("opt.") else (self._put, name)
        return holder, own, getattr(holder, own)

    def _batched(self, name: str) -> bool:
        holder, own, _ = self._array(name)
        spec: Any = next(f.type for f in fields(holder) if f.name == own)
        return getattr(spec, "shape", ())[:1] == ("*",)

    def field(self, name: str) -> Tensor:
        """Return the rows (n, ...) of a model field, which begin as the model's."""
        if name not in self.fields:
            holder, own, shared = self._array(name)
            with self._warp.ScopedDevice(self._on):
                rows = self._warp.empty((self.num_envs, *shared.shape[1:]), dtype=shared.dtype)
            rows._is_batched = True  # as MuJoCo Warp marks its own
            values = self._warp.to_torch(rows)
            values[:] = self._warp.to_torch(shared)
            setattr(holder, own, rows)
            self._graph = None  # refers to the old array
            self.fields[name] = values.view(self.num_envs, *nominal(self.model, name).shape)
        return self.fields[name]

    def step(self) -> None:
        """Simulate one physics step of all environments."""
        if self._graph is None:
            self._graph = self._capture(self._put, self._data)
        with self._warp.ScopedDevice(self._on):
            if self.device.type == "cuda":
                ours, theirs = self._on.stream, self._warp.stream_from_torch(self.device)
                ours.wait_stream(theirs)
                self._warp.capture_launch(self._graph)
                theirs.wait_stream(ours)
            else:
                self._warp.capture_launch(self._graph)

    def _capture(self, put: Any, data: Any) -> Any:
        """Record a step, which runs twenty times as fast from the record; the worlds keep their state."""
        with self._warp.ScopedDevice(self._on):
            kept = {name: self._warp.clone(getattr(data, name)) for name in (*STATE, *VIEWED, "overflow")}
            self._mjw.step(put, data)  # compiles, and allocates what cannot be allocated in a recording
            for name, values in kept.items():
                self._warp.copy(getattr(data, name), values)
            with self._warp.ScopedCapture() as capture:
                self._mjw.step(put, data)
        return capture.graph

    def full(self) -> Tensor:
        """Return (n,) bool: True where contacts or constraints were dropped since the reset, for lack of room."""
        return (self.overflow & self._full) != 0


def nominal(model: mujoco.MjModel, name: str) -> Any:
    """Return a field of a model by its name, such as "body_mass" or "opt.gravity"."""
    return getattr(model.opt, name[4:]) if name.startswith("opt.") else getattr(model, name)
