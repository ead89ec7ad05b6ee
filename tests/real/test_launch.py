"""The description of the nodes, and both of its readers: ROS 2's launch files and `robot-rl launch`."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import robot_rl.cli.launch as cli
from real.launching.launch import arguments, describe, files
from real.launching.node import LaunchError, NodeProcess
from robot_rl.cli.main import main
from robot_rl.util.errors import UnknownName, UserError

ROOT = Path(__file__).parents[2]
LAUNCH_FILES = sorted((ROOT / "launch").glob("*.launch.py"))
POLICY = {"policy": "runs/lift/bundle"}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.name.replace(".", "_"), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stub = load(Path(__file__).with_name("launch_stub.py"))


def commands(file: str, **values: str) -> dict[str, str]:
    return {node.name: " ".join(node.command) for node in describe(file, values) if node.condition}


def test_twin_alone() -> None:
    assert commands("twin", seed="3") == {"twin": "twin panda --seed 3"}


def test_a_twin_has_the_task_of_the_policy(tmp_path: Path) -> None:
    file = tmp_path / "bundle" / "policy.json"
    file.parent.mkdir()
    for text, expected in (
        (json.dumps({"interface": {"task": "panda-turn"}}), " --task panda-turn"),
        (json.dumps({"interface": {"task": "evil.module:TASK"}}), ""),
        (json.dumps({"interface": None}), ""),
        ("{", ""),
    ):
        file.write_text(text)
        found = commands("arm", policy=str(tmp_path), twin="true")
        assert found["twin"] == f"twin panda{expected} --seed 0"
    file.write_text(json.dumps({"interface": {"task": "panda-turn"}}))
    assert "--task other" in commands("arm", policy=str(tmp_path), twin="true", task="other")["twin"]


def test_a_task_reaches_twin_and_operator_and_is_otherwise_the_robots() -> None:
    values = {**POLICY, "twin": "true", "teleop": "scripted"}
    named = commands("arm", **values, task="panda-lift")
    assert named["twin"] == "twin panda --task panda-lift --seed 0"
    assert named["teleop"] == "teleop scripted --robot panda --task panda-lift --seed 0"
    assert commands("arm", **values, robot="ur5e")["twin"] == "twin ur5e --seed 0"
    assert commands("twin", robot="go2") == {"twin": "twin go2 --seed 0"}


def test_arm_with_everything() -> None:
    found = commands("arm", **POLICY, twin="true", dry_run="true", teleop="gamepad", episodes="5", out="runs/x")
    assert found == {
        "twin": "twin panda --seed 0",
        "deploy": "deploy runs/lift/bundle --robot panda --episodes 5 --out runs/x --seconds 0 --runtime torch"
        " --execution receding --dry-run",
        "teleop": "teleop gamepad --robot panda",
    }
    plain = "deploy runs/lift/bundle --robot panda --seconds 0 --runtime torch --execution"
    assert commands("arm", **POLICY) == {"deploy": f"{plain} receding"}
    assert commands("arm", **POLICY, execution="realtime") == {"deploy": f"{plain} realtime"}


@pytest.mark.parametrize("file", ["arm", "quadruped"])
def test_the_runtime_and_the_length_of_an_episode_reach_the_policys_process(file: str) -> None:
    assert "--seconds 7 --runtime onnx" in commands(file, **POLICY, runtime="onnx", seconds="7")["deploy"]
    assert "--runtime torch" in commands(file, **POLICY)["deploy"]


def test_without_a_camera() -> None:
    found = commands("arm", **POLICY, twin="true", camera="false") | commands("finetune", **POLICY, camera="false")
    assert found["twin"] == "twin panda --seed 0 --no-camera"
    assert found["deploy"].endswith("--video-episodes 0")
    assert (
        found["finetune"]
        == "finetune runs/lift/bundle --robot panda --recipe hil-serl --minutes 3 --seed 0 --no-camera"
    )


def test_finetune_starts_the_operator_first() -> None:
    found = commands("finetune", **POLICY, twin="true", teleop="scripted", minutes="0.5")
    assert list(found) == ["twin", "teleop", "finetune"]
    learn = "finetune runs/lift/bundle --robot panda --recipe hil-serl --minutes 0.5 --seed 0"
    assert found["finetune"] == learn
    assert commands("finetune", **POLICY, teleop="none").keys() == {"finetune"}


def test_a_seed_reaches_all_that_is_random() -> None:
    for file in ("finetune", "arm"):
        found = commands(file, **POLICY, twin="true", teleop="scripted", seed="7")
        seeded = {name for name, command in found.items() if "--seed 7" in command}
        assert seeded == found.keys() - {"deploy"}, "held-out episodes are the same for every seed"
    assert "--seed" not in commands("finetune", **POLICY, teleop="gamepad")["teleop"]


def test_finetune_goes_on_with_a_session() -> None:
    found = commands("finetune", **POLICY, teleop="none", out="runs/tuned", dataset="datasets/mine", resume="true")
    assert "--out runs/tuned --dataset datasets/mine" in found["finetune"] and " --resume" in found["finetune"]


def test_record_starts_the_operator_first_and_needs_a_task() -> None:
    found = commands("record", task="panda-lift", twin="true", episodes="5", resume="true", keep_failures="true")
    assert list(found) == ["twin", "teleop", "record"]
    assert found["twin"] == "twin panda --task panda-lift --seed 0"
    assert found["teleop"] == "teleop keyboard --robot panda --task panda-lift"
    words = "record panda-lift --robot panda --episodes 5 --seconds 30 --seed 0 --resume --keep-failures"
    assert found["record"] == words
    roles = {node.name: node for node in describe("record", {"task": "panda-lift"})}
    assert roles["record"].commands_robot and roles["record"].required and not roles["teleop"].required
    with pytest.raises(LaunchError, match="record.launch needs task:=VALUE"):
        describe("record", {"twin": "true"})


def test_quadruped_puts_a_guard_between_policy_and_robot() -> None:
    found = commands(
        "quadruped", **POLICY, twin="true", teleop="keyboard", push_every="5", episodes="3", first_episode="7"
    )
    assert found == {
        "twin": "twin go2 --seed 0 --no-camera --push-every 5",
        "guard": "guard go2",
        "deploy": "deploy runs/lift/bundle --robot go2 --episodes 3 --seconds 60 --runtime torch"
        " --commands schedule --seed 7 --video-episodes 0",
        "teleop": "teleop keyboard --robot go2",
    }
    assert list(commands("quadruped", **POLICY)) == ["guard", "deploy"]
    # A guard that nobody commands damps the robot: a dry run, which sends nothing, has none.
    for twin, names in (("false", ["deploy"]), ("true", ["twin", "deploy"])):
        dry = [node for node in describe("quadruped", {**POLICY, "twin": twin, "dry_run": "true"}) if node.condition]
        assert [node.name for node in dry] == names and dry[-1].start_after == "twin"
    assert "--commands person" in commands("quadruped", **POLICY)["deploy"], "a robot does not walk off by itself"
    assert "--commands schedule" in commands("quadruped", **POLICY, commands="schedule")["deploy"]
    assert "--commands person" in commands("quadruped", **POLICY, commands="person", twin="true")["deploy"]
    roles = {node.name: node for node in describe("quadruped", POLICY)}
    assert roles["deploy"].commands_robot and roles["guard"].guards_robot
    assert roles["deploy"].start_after == "guard" and roles["guard"].start_after == "twin"
    assert all(node.required == (name not in ("tell", "teleop", "view")) for name, node in roles.items())


def test_what_commands_the_robot_is_required_and_stopped_first() -> None:
    for file in ("arm", "finetune"):
        roles = {node.name: node for node in describe(file, POLICY)}
        assert [name for name, node in roles.items() if node.commands_robot] == [{"arm": "deploy"}.get(file, file)]
        assert all(node.required == (name not in ("tell", "teleop", "view")) for name, node in roles.items())


def test_namespace_domain_and_log_level_reach_every_node() -> None:
    values = {**POLICY, "twin": "true", "namespace": "left/arm", "domain_id": "7", "log_level": "debug"}
    for node in describe("arm", values):
        assert node.ros_arguments() == ("--ros-args", "-r", "__ns:=/left/arm", "--log-level", "debug")
        assert node.environment == {"ROS_DOMAIN_ID": "7"}
    assert all(not node.ros_arguments() and not node.environment for node in describe("twin", {}))


@pytest.mark.parametrize("file", ["twin", "arm", "finetune", "record"])
def test_a_prefix_of_joint_names_reaches_every_node(file: str) -> None:
    given = {"arm": POLICY, "finetune": POLICY, "record": {"task": "panda-lift"}}.get(file, {})
    for node in describe(file, {**given, "joint_prefix": "fr3_"}):
        assert node.ros_arguments() == ("--ros-args", "-p", "joint_prefix:=fr3_")


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("arn", {}, "unknown launch file 'arn'; did you mean arm?"),
        ("arm", {}, "arm.launch needs policy:="),
        ("arm", {"policy": ""}, "arm.launch needs policy:="),
        ("arm", {**POLICY, "polcy": "x"}, "did you mean policy?"),
        ("arm", {**POLICY, "teleop": "keybord"}, "did you mean keyboard?"),
        ("arm", {**POLICY, "twin": "yes"}, "known: false, true"),
        ("quadruped", {**POLICY, "runtime": "onx"}, "did you mean onnx?"),
        ("arm", {**POLICY, "seconds": "-1"}, "seconds:=-1 is not a number of 0.0 or more"),
        ("arm", {**POLICY, "robot": "pandas"}, "did you mean panda"),
        ("arm", {**POLICY, "episodes": "0"}, "episodes:=0 is not a whole number of 1 or more"),
        ("arm", {**POLICY, "episodes": "2.5"}, "is not a whole number"),
        ("finetune", {**POLICY, "minutes": "nan"}, "minutes:=nan is not a number of 0.0 or more"),
        ("twin", {"domain_id": "233"}, "domain_id:=233 is above 232"),
        ("twin", {"domain_id": "-1"}, "domain_id:=-1"),
        ("twin", {"namespace": "left arm"}, "namespace:=left arm is no ROS namespace"),
    ],
)
def test_bad_arguments_name_the_remedy(file: str, values: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        describe(file, values)
    assert caught.value.code == 2
    assert isinstance(caught.value, (LaunchError, UnknownName))


def test_every_argument_is_described_and_its_default_is_valid() -> None:
    for file in files():
        for argument in arguments(file):
            assert argument.description
            assert argument.default is None or argument.check(argument.default) == argument.default


# The launch files themselves.


def test_there_is_one_launch_file_for_each_description() -> None:
    assert {path.name for path in LAUNCH_FILES} == {f"{name}.launch.py" for name in files()}


@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda path: path.name)
def test_launch_files_are_thin(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "launch", "real.launching.launch_actions"}
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert functions == ["generate_launch_description"]


def visit(file: str, prefix: str | None = None, **values: str) -> list[Any]:
    with stub.installed(prefix):
        description = load(ROOT / "launch" / f"{file}.launch.py").generate_launch_description()
        return stub.run(description, values)


def processes(visited: list[Any]) -> list[Any]:
    return [action for action in visited if isinstance(action, stub.ExecuteProcess)]


def test_ros_declares_the_same_arguments() -> None:
    for file in files():
        visited = visit(file, **POLICY, task="panda-lift", teleop="none")
        declared = [action for action in visited if isinstance(action, stub.DeclareLaunchArgument)]
        assert [action.name for action in declared] == [argument.name for argument in arguments(file)]
        assert all(action.description for action in declared)


def test_ros_refuses_what_we_refuse() -> None:
    with pytest.raises(RuntimeError, match="policy"):
        visit("arm")
    with pytest.raises(RuntimeError, match="teleop"):
        visit("arm", **POLICY, teleop="keybord")
    with pytest.raises(LaunchError, match="domain_id"):
        visit("arm", **POLICY, domain_id="x")


@pytest.mark.parametrize("there", [[], ["/nonexistent/js0"]])
def test_ros_starts_nothing_without_the_gamepad(monkeypatch: pytest.MonkeyPatch, there: list[str]) -> None:
    monkeypatch.setattr("real.teleop.joystick.glob", lambda pattern: there)
    with pytest.raises(LaunchError, match="no gamepad|cannot be opened"):
        visit("arm", **POLICY, teleop="gamepad")


def test_ros_starts_pip_installed_nodes_as_we_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("real.launching.launch_actions.require_device", lambda values: None)
    values = {**POLICY, "twin": "true", "teleop": "gamepad", "namespace": "left", "domain_id": "7"}
    found = processes(visit("arm", **values))
    ours = [node for node in describe("arm", values) if node.condition]
    assert [process.name for process in found] == [node.name for node in ours]  # in the same order
    for process, node in zip(found, ours, strict=True):
        expected = [sys.executable, "-m", "robot_rl.cli.main", *node.command, *node.ros_arguments()]
        assert process.cmd == expected
        assert process.additional_env == {"ROS_DOMAIN_ID": "7"}
        assert (process.on_exit is not None) == node.required
        assert process.respawn == node.respawn
        assert float(process.sigterm_timeout) == 5.0 + node.writes
        assert process.output == "screen"


def test_ros_too_waits_for_the_bundle_of_a_finetune() -> None:
    finetune = processes(visit("finetune", **POLICY, teleop="none"))[0]
    assert finetune.name == "finetune" and float(finetune.sigterm_timeout) >= 60.0


def test_ros_waits_for_the_twins_start() -> None:
    visited = visit("arm", **POLICY, twin="true")
    handlers = [a.event_handler for a in visited if isinstance(a, stub.RegisterEventHandler)]
    twin, deploy = processes(visited)
    assert [(h.target_action, h.on_start) for h in handlers] == [(twin, [deploy])]
    (alone,) = processes(visit("arm", **POLICY))
    assert alone.name == "deploy"


def test_ros_finds_the_colcon_installed_executable(tmp_path: Path) -> None:
    executable = tmp_path / "lib" / "robot_rl" / "robot-rl"
    executable.parent.mkdir(parents=True)
    executable.touch()
    options = {"namespace": "left", "log_level": "debug", "joint_prefix": "fr3_"}
    (twin,) = processes(visit("twin", str(tmp_path), **options))
    assert isinstance(twin, stub.Node)
    assert (twin.package, twin.executable) == ("robot_rl", "robot-rl")
    assert twin.arguments == ["twin", "panda", "--seed", "0"]
    assert twin.namespace == "/left"
    assert twin.ros_arguments == ["-p", "joint_prefix:=fr3_", "--log-level", "debug"]
    executable.unlink()  # the marker alone, as a wheel leaves it, is not enough
    (twin,) = processes(visit("twin", str(tmp_path)))
    assert not isinstance(twin, stub.Node)


@pytest.mark.parametrize("terminal", ["/usr/bin/xterm", None])
def test_ros_gives_the_keyboard_a_terminal(monkeypatch: pytest.MonkeyPatch, terminal: str | None) -> None:
    monkeypatch.setattr("shutil.which", lambda name: terminal)
    visited = visit("arm", **POLICY, teleop="keyboard")
    prefixes = {process.name: process.prefix for process in processes(visited)}
    if terminal:
        assert prefixes == {"deploy": None, "teleop": "xterm -e"}
    else:
        assert prefixes == {"deploy": None}
        (hint,) = [action.msg for action in visited if isinstance(action, stub.LogInfo)]
        assert hint.endswith("robot-rl teleop keyboard --robot panda")


@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda path: path.name)
def test_with_ros_2_itself(path: Path) -> None:
    launch = pytest.importorskip("launch")
    if not hasattr(launch, "LaunchDescription"):  # our own folder of launch files, seen from the root
        pytest.skip("ROS 2's launch is not installed")
    description = load(path).generate_launch_description()
    assert isinstance(description, launch.LaunchDescription)
    declared = {argument.name for argument in description.get_launch_arguments()}
    assert declared == {argument.name for argument in arguments(path.name.split(".")[0])}


# robot-rl launch.

ECHO = (sys.executable, "-I", "-S", "-c", "import sys; print(sys.argv[1:]); sys.exit(3)")


def test_cli_runs_the_description(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "EXECUTABLE", ECHO)
    assert cli.main(["twin.launch.py", "seed:=1", "seed:=2"]) == 3
    out = capfd.readouterr().out
    assert "[twin]   ['twin', 'panda', '--seed', '2']\n" in out
    assert "[launch] twin exited with code 3\n" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["arn"], "did you mean arm?"),
        (["arm", "robot=panda"], "'robot=panda' is not name:=value; did you mean robot:=panda?"),
        (["arm", "panda"], "did you mean panda:=VALUE?"),
        (["arm", ":=panda"], "is not name:=value"),
        (["arm", "policy:=x", "robt:=panda"], "did you mean robot"),
        (["arm", "policy:=x", "--twin"], "unknown flag --twin"),
        (["arm"], "needs policy:="),
    ],
)
def test_cli_bad_input(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *argv]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1 and not captured.out
    with pytest.raises(UserError):
        main(["launch", *argv, "--debug"])


def test_cli_lists_files_and_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(summary in out for summary in files().values())
    assert cli.main(["arm", "--show-args"]) == 0
    out = capsys.readouterr().out
    assert all(argument.name in out for argument in arguments("arm"))


def test_ros_ends_with_a_failure_when_a_required_node_failed() -> None:
    """`ros2 launch` returns 1 only after an exception; it is no failure that all end because one did."""
    (deploy,) = processes(visit("arm", **POLICY))
    running, ending = SimpleNamespace(is_shutdown=False), SimpleNamespace(is_shutdown=True)
    with stub.installed(None):
        (action,) = deploy.on_exit(SimpleNamespace(returncode=0), running)
        assert isinstance(action, stub.Shutdown)
        (action,) = deploy.on_exit(SimpleNamespace(returncode=-2), ending)
        assert isinstance(action, stub.Shutdown)
        (action,) = deploy.on_exit(SimpleNamespace(returncode=1), running)
        with pytest.raises(LaunchError, match="deploy exited with code 1"):
            action.execute(stub.Context({}))


def test_values_that_begin_with_dashes_are_values() -> None:
    from robot_rl.cli.deploy import Deploy
    from robot_rl.cli.main import parse

    values = {"policy": "--twin", "label": "--debug", "out": "-o"}
    (node,) = [node for node in describe("arm", values) if node.condition]
    parsed = parse(Deploy, list(node.command[1:]), "deploy")
    assert (str(parsed.bundle), parsed.label, str(parsed.out)) == ("--twin", "--debug", "-o")


def test_the_bus_reaches_every_node() -> None:
    for node in describe("arm", {**POLICY, "twin": "true", "bus": "dds"}):
        assert node.environment == {"ROBOT_RL_BUS": "dds"}
    assert not describe("twin", {})[0].environment


def test_values_may_contain_the_separator() -> None:
    assert cli.parse(["policy:=a:=b", "out:="]) == {"policy": "a:=b", "out": ""}


def test_a_node_without_ros_arguments_gets_none() -> None:
    assert NodeProcess("a", ("twin",)).ros_arguments() == ()
