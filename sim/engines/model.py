"""MuJoCo model of a scene with the robot's own model file; all engines are built from this model."""

import math

import numpy as np

from robot_rl.interface.robot import FloatingBase, RobotSpec
from robot_rl.util.errors import ConfigError, nearest
from sim.engines.read_robot import read_robot_file, root_body
from sim.engines.robot_file import check_robot_file, compiling
from sim.engines.servos import add_servos, add_springs, limit_efforts, set_gripper
from sim.engines.urdf import exclude_base
from sim.objects.base import Object
from sim.parameters import LONGEST_ACTION_DELAY
from sim.rendering.gl import mujoco
from sim.scenes import SCENE, Camera, Scene, robot_model
from sim.terrain import Terrain
from sim.terrain_solids import solids

MAX_ACTION_DELAY = LONGEST_ACTION_DELAY
BONE = 0.014
"""Radius of the rods drawn between the joints of a leg, m."""
ROLLING = 1e-4
"""Damping of objects that roll, N s/m."""
STUCK = 1e6
"""Damping of a fixed object or marker, N s/m and N m s/rad. With a free joint, damped like this, every environment can
place the object elsewhere in the same model. A force of 100 N moves it by 0.1 mm/s; gravity is compensated."""
HEAVY = 1e4
"""Inertia added to fixed objects, kg and kg m^2, since the contact solver does not know their damping."""
HUNG = 0.5
"""Height by which a hung robot is above where it stands, m."""
OVERSPEED = 10.0
"""Maximum plausible speed of a joint as a multiple of its speed limit; falls and impacts stay below this speed."""
TRUNK_SPEED, TRUNK_TURN = 20.0, 100.0
"""Maximum plausible speeds of a trunk, m/s and rad/s."""
OBJECT_SPEED = 1e3
"""Maximum plausible speed of an object thrown by a gripper, m/s or rad/s."""


def max_speeds(model: mujoco.MjModel, robot: RobotSpec) -> np.ndarray:
    """Return the generalized speeds (nv,) above which finite physics counts as diverged."""
    speeds = np.full(model.nv, OBJECT_SPEED)
    for joint in robot.joints:
        speeds[model.joint(joint.name).dofadr[0]] = OVERSPEED * joint.velocity
    if robot.base:
        start = model.joint(robot.base.body).dofadr[0]
        speeds[start : start + 6] = [TRUNK_SPEED] * 3 + [TRUNK_TURN] * 3
    return speeds


def compile_model(robot: RobotSpec, scene: Scene, mjcf: str = "") -> mujoco.MjModel:
    """Compile the scene with the robot's own model file; names of elements from outside that file begin with SCENE."""
    with compiling(robot_model(robot, mjcf)):
        spec = robot_model_spec(robot, scene, mjcf)
        _furnish(spec, scene, robot)
        if robot.base:
            _draw_bones(spec, robot.base)
        return spec.compile()


def robot_model_spec(robot: RobotSpec, scene: Scene, mjcf: str = "") -> mujoco.MjSpec:
    """Return the model of the robot alone, with the changes to the robot's file that all engines need."""
    file = read_robot_file(robot, mjcf)
    check_robot_file(file, robot)
    spec, urdf = file.spec, file.urdf
    spec.option = mujoco.MjSpec().option  # physics options are those of the scene, not of the robot's file
    spec.option.timestep = scene.timestep
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    cones = {"elliptic": mujoco.mjtCone.mjCONE_ELLIPTIC, "pyramidal": mujoco.mjtCone.mjCONE_PYRAMIDAL}
    spec.option.cone = cones[scene.cone]
    spec.option.impratio = scene.impratio
    # Most steps need few iterations; a limit of 10 sometimes ejected a firmly held cube from the gripper.
    spec.option.iterations = spec.option.ls_iterations = scene.iterations
    for body in spec.bodies[1:]:
        body.gravcomp = 0.0 if robot.base else 1.0  # real arms compensate gravity
        if scene.collisions == "listed" and robot.collision_bodies and body.name not in robot.collision_bodies:
            for geom in body.geoms:
                geom.contype = geom.conaffinity = 0
        if urdf and not body.explicitinertial:
            for geom in body.geoms:
                geom.density = 0.0  # unlike in an MJCF, geoms add no mass to a link
    for joint in spec.joints:
        if joint.name in robot.joint_names:
            joint.armature = joint.armature if robot.armature is None else robot.armature
            joint.frictionloss = joint.frictionloss if robot.joint_friction is None else robot.joint_friction
        elif robot.gripper and joint.name in robot.gripper.joints:
            joint.armature = joint.armature if robot.gripper.armature is None else robot.gripper.armature
    if robot.compliant:
        add_springs(spec, robot, scene.motors)
    else:
        if scene.motors != "ideal":
            raise ConfigError(f"scene: the servos of robot {robot.name!r} hide their motors; make motors 'ideal'")
        if urdf:
            add_servos(spec, robot)
        elif robot.gripper:
            set_gripper(spec, robot, robot.gripper)
        limit_efforts(spec, robot)
    if robot.base:
        _free(spec, robot.base, scene.hung)
    elif urdf:
        exclude_base(spec)
    for actuator in spec.actuators:
        actuator.nsample = math.ceil(MAX_ACTION_DELAY / scene.timestep) + 1
        actuator.delay = scene.timestep
        actuator.interp = 0  # the robot holds the last command received
    return spec


def _free(spec: mujoco.MjSpec, base: FloatingBase, hung: bool) -> None:
    """Add a free joint to the trunk and sensors to the feet; disable collisions between the robot's own bodies."""
    trunk = spec.body(base.body)
    joint = trunk.add_freejoint(name=base.body)
    if hung:
        trunk.pos[2] += HUNG
        trunk.gravcomp, joint.damping, joint.armature = 1.0, [STUCK, 0, 0], HEAVY
    for geom in spec.geoms:
        geom.conaffinity = 0
    for name in base.feet:
        foot = spec.body(name)
        for geom in foot.geoms:
            geom.priority = 1  # contacts have the friction of the foot
        foot.add_site(name=f"{name}.touch", size=[0.03, 0, 0], type=mujoco.mjtGeom.mjGEOM_SPHERE)
    for view, kind, of, at in (
        ("force", mujoco.mjtSensor.mjSENS_TOUCH, mujoco.mjtObj.mjOBJ_SITE, ".touch"),
        ("position", mujoco.mjtSensor.mjSENS_FRAMEPOS, mujoco.mjtObj.mjOBJ_XBODY, ""),
        ("velocity", mujoco.mjtSensor.mjSENS_FRAMELINVEL, mujoco.mjtObj.mjOBJ_XBODY, ""),
    ):
        for name in base.feet:  # sensors of one view are contiguous
            spec.add_sensor(name=f"{name}.{view}", type=kind, objtype=of, objname=name + at)


def _draw_bones(spec: mujoco.MjSpec, base: FloatingBase) -> None:
    """Add visual rods between the joints of each leg, for videos, since collision geoms leave gaps between joints."""
    for foot in base.feet:
        body = spec.body(foot)
        while body.parent is not None and body.parent.name != base.body and body.parent.name != "world":
            if np.linalg.norm(body.pos) > 0:
                body.parent.add_geom(
                    type=mujoco.mjtGeom.mjGEOM_CAPSULE, fromto=[0, 0, 0, *body.pos], size=[BONE, 0, 0], mass=0.0,
                    contype=0, conaffinity=0, group=2, rgba=[0.25, 0.26, 0.28, 1],
                )  # fmt: skip
            body = body.parent


def object_model_spec(thing: Object) -> mujoco.MjSpec:
    """Return the model of one object with the free joint by which a scene places it."""
    spec = thing.spec()
    body = spec.body(thing.name)
    body.pos = [0.5, 0, thing.rest]
    joint = body.add_freejoint(name=thing.name)
    if thing.rolls:
        joint.damping = [ROLLING, 0, 0]  # rolling objects come to rest on the table
    if not thing.solid:
        for geom in spec.geoms:
            geom.contype = geom.conaffinity = 0
    if thing.fixed or not thing.solid:
        body.gravcomp, joint.damping = 1.0, [STUCK, 0, 0]
    if thing.fixed and thing.solid:
        joint.armature = HEAVY
    return spec


def _furnish(spec: mujoco.MjSpec, scene: Scene, robot: RobotSpec) -> None:
    """Add ground, objects, light and cameras to a robot's model. These elements are attached as separate specs, so that
    names, defaults and compiler options of the robot's file do not affect them."""
    spec.visual.global_.offwidth, spec.visual.global_.offheight = 1280, 960
    spec.visual.headlight.ambient = [0.4, 0.4, 0.4]
    room = mujoco.MjSpec()
    world = room.worldbody
    _add_tables(room)
    if scene.ground is not None:
        add_ground(room, world, scene.ground)
    else:
        size = [0, 0, 0.1] if robot.base else [2, 2, 0.1]  # infinite ground, or a table top
        world.add_geom(name="table", type=mujoco.mjtGeom.mjGEOM_PLANE, size=size, material="table")
    _attach(spec, room, spec.worldbody)
    for thing in scene.objects:
        _attach(spec, object_model_spec(thing), spec.worldbody)
        if thing.fixed:
            spec.add_exclude(bodyname1="world", bodyname2=SCENE + thing.name)
    mounted = mujoco.MjSpec()
    carrier, mode = _carrier(spec, robot, follows=robot.base is not None)
    mounted.worldbody.add_light(name="sun", pos=[0.6, -0.6, 2.0], dir=[-0.2, 0.3, -1], castshadow=True, mode=mode)
    _attach(spec, mounted, carrier)
    for camera in scene.cameras:
        _add_camera(spec, robot, camera)


def add_ground(spec: mujoco.MjSpec, body: mujoco.MjsBody, terrain: Terrain, material: str = "table") -> None:
    """Add uneven ground to a body; the first shape is called table."""
    shapes, box, mesh = solids(terrain), mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_MESH
    for k, row in enumerate(shapes.boxes):
        name = f"ground.{k}" if k else "table"
        body.add_geom(name=name, type=box, pos=row[:3], quat=row[3:7], size=row[7:], material=material)
    for k, corners in enumerate(shapes.frusta):
        spec.add_mesh(name=f"frustum.{k}", uservert=corners.ravel())
        body.add_geom(name=f"frustum.{k}", type=mesh, meshname=f"frustum.{k}", material=material)


def _add_camera(spec: mujoco.MjSpec, robot: RobotSpec, camera: Camera) -> None:
    forward = np.subtract(camera.target, camera.position)
    right = np.cross(forward, [0, 0, 1])
    up = np.cross(right, forward)
    frame = np.stack([right / np.linalg.norm(right), up / np.linalg.norm(up), -forward / np.linalg.norm(forward)], 1)
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, frame.ravel())
    carrier, mode = _carrier(spec, robot, camera.follows)
    if camera.body and (carrier := spec.body(camera.body)) is None:
        bodies = [body.name for body in spec.bodies[1:]]
        raise ConfigError(
            f"camera {camera.name!r} is mounted on {camera.body!r}, which robot {robot.name!r} lacks; "
            f"{nearest(camera.body, bodies)}"
        )
    mounted = mujoco.MjSpec()
    mounted.worldbody.add_camera(name=camera.name, pos=camera.position, quat=quat, fovy=camera.fovy, mode=mode)
    _attach(spec, mounted, carrier)


def _attach(spec: mujoco.MjSpec, part: mujoco.MjSpec, body: mujoco.MjsBody) -> None:
    spec.attach(part, prefix=SCENE, frame=body.add_frame())


def _add_tables(spec: mujoco.MjSpec) -> None:
    """Add the materials of the table; randomized appearance chooses among `sim.rendering.looks.TEXTURES`."""
    builtin, mark = mujoco.mjtBuiltin, mujoco.mjtMark
    light, dark = [0.75] * 3, [0.45] * 3
    kinds = {
        "table": (builtin.mjBUILTIN_CHECKER, mark.mjMARK_NONE, 8, 256, [0.55, 0.57, 0.6], [0.5, 0.52, 0.55]),
        "table.flat": (builtin.mjBUILTIN_FLAT, mark.mjMARK_NONE, 1, 128, light, dark),
        "table.gradient": (builtin.mjBUILTIN_GRADIENT, mark.mjMARK_NONE, 2, 128, light, dark),
        "table.dots": (builtin.mjBUILTIN_FLAT, mark.mjMARK_RANDOM, 4, 128, light, dark),
    }
    for name, (kind, marks, repeat, size, first, second) in kinds.items():
        spec.add_texture(
            name=name, type=mujoco.mjtTexture.mjTEXTURE_2D, builtin=kind, mark=marks, random=0.05, rgb1=first,
            rgb2=second, markrgb=[0.2, 0.2, 0.2], width=size, height=size,
        )  # fmt: skip
        material = spec.add_material(name=name, texrepeat=[repeat, repeat])
        material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = name


def _carrier(spec: mujoco.MjSpec, robot: RobotSpec, follows: bool) -> tuple[mujoco.MjsBody, mujoco.mjtCamLight]:
    """Return the parent body of a light or camera and its mode: fixed in the world, or tracking the robot."""
    if follows and (root := root_body(spec, robot)) is not None:
        return root, mujoco.mjtCamLight.mjCAMLIGHT_TRACK
    return spec.worldbody, mujoco.mjtCamLight.mjCAMLIGHT_FIXED


def foot_shapes(model: mujoco.MjModel, foot: str) -> list[int]:
    """Return the geoms of a foot that collide; raise ConfigError if no geom of the foot collides."""
    body = model.body(foot)
    shapes = range(int(body.geomadr[0]), int(body.geomadr[0] + body.geomnum[0])) if body.geomnum[0] else range(0)
    colliding = [g for g in shapes if model.geom_contype[g] or model.geom_conaffinity[g]]
    if not colliding:
        raise ConfigError(f"the foot {foot!r} has no shape that collides in the robot's model file; give it one")
    return colliding
