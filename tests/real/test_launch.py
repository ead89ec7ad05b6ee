"""Launch descriptions, and their two readers: ROS 2's launch files and `robot-rl launch`."""

import importlib
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
from real.launching.node import LaunchError
from robot_rl.cli.deploy import Deploy
from robot_rl.cli.main import COMMANDS, main, parse
from robot_rl.util.errors import UnknownName, UserError

ROOT = Path(__file__).parents[2]
LAUNCH_FILES = sorted((ROOT / "launch").glob("*.launch.py"))
POLICY = {"policy": "runs/lift/bundle"}
REQUIRED = {"arm": POLICY, "quadruped": POLICY, "finetune": POLICY, "record": {"task": "panda-lift"}, "twin": {}}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.name.replace(".", "_"), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stub = load(Path(__file__).with_name("launch_stub.py"))


def commands(file: str, **values: str) -> dict[str, dict[str, str]]:
    """Return each started node's options, flags as "" and the positional arguments under ""."""
    found = {}
    for node in (node for node in describe(file, REQUIRED[file] | values) if node.condition):
        text = " ".join(node.command) + " "
        found[node.name] = dict(re.findall(r"--(\S+) (?:([^-]\S*) )?", text)) | {"": text.split(" --")[0].strip()}
    return found


# ---- descriptions ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("file", ["twin", "arm", "quadruped", "record"])
@pytest.mark.parametrize("camera", ["true", "false"])
def test_every_nodes_command_line_is_valid(file: str, camera: str) -> None:
    names = {argument.name for argument in arguments(file)}
    values = {a.name: "true" for a in arguments(file) if a.choices == ("true", "false")} | {"camera": camera}
    values |= dict.fromkeys(names & {"out", "label", "instruction", "then", "classifier", "task"}, "x")
    for node in describe(file, REQUIRED[file] | values):
        module, name = COMMANDS[node.command[0]][0].split(":")
        parse(getattr(importlib.import_module(module), name), list(node.command[1:]), node.command[0])


def test_twin_has_the_task_of_the_policy(tmp_path: Path) -> None:
    file = tmp_path / "bundle" / "policy.json"
    file.parent.mkdir()
    for text, task in (
        (json.dumps({"interface": {"task": "panda-turn"}}), "panda-turn"),
        (json.dumps({"interface": {"task": "evil.module:TASK"}}), None),
        (json.dumps({"interface": None}), None),
        ("{", None),
    ):
        file.write_text(text)
        assert commands("arm", policy=str(tmp_path), twin="true")["twin"].get("task") == task
    file.write_text(json.dumps({"interface": {"task": "panda-turn"}}))
    assert commands("arm", policy=str(tmp_path), twin="true", task="other")["twin"]["task"] == "other"


@pytest.mark.parametrize("file", ["arm", "quadruped", "finetune"])
def test_arguments_reach_the_nodes(file: str) -> None:
    values = {"twin": "true", "teleop": "scripted", "task": "panda-lift", "seed": "7", "out": "runs/x"}
    nodes = commands(file, camera="false", **values)
    commanding = nodes.pop("finetune", None) or nodes.pop("deploy")
    assert commanding["out"] == "runs/x" and commanding[""].endswith("runs/lift/bundle")
    assert commanding.get("video-episodes") == "0" or "no-camera" in commanding
    assert "no-camera" in nodes["twin"] and nodes["twin"]["task"] == nodes["teleop"]["task"] == "panda-lift"
    assert nodes["twin"]["seed"] == nodes["teleop"]["seed"] == "7"
    assert commanding.get("seed") == ("7" if file == "finetune" else None), "held-out episodes are always the same"
    if file == "finetune":
        assert "resume" in commands(file, resume="true", dataset="datasets/mine")["finetune"]
    else:
        changed = commands(file, runtime="onnx", seconds="7", first_episode="5", episodes="3", dry_run="true")["deploy"]
        expected = {"runtime": "onnx", "seconds": "7", "seed": "5", "episodes": "3", "dry-run": ""}
        assert {name: changed[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("file", "names"),
    [("arm", ["twin", "deploy", "teleop"]), ("finetune", ["twin", "teleop", "finetune"]),
     ("record", ["twin", "teleop", "record"]), ("quadruped", ["twin", "guard", "deploy", "teleop"])],
)  # fmt: skip
def test_nodes_start_in_order_and_the_commanding_ones_are_required(file: str, names: list[str]) -> None:
    nodes = {node.name: node for node in describe(file, REQUIRED[file] | {"twin": "true", "teleop": "scripted"})}
    assert [name for name, node in nodes.items() if node.condition] == names
    (commanding,) = [name for name, node in nodes.items() if node.commands_robot]
    assert commanding in ("deploy", "finetune", "record")
    assert all(node.required == (name not in ("tell", "teleop", "view")) for name, node in nodes.items())
    assert nodes["twin"].start_after == "" and nodes[commanding].start_after in names


def test_quadruped_has_a_guard_unless_in_a_dry_run() -> None:
    nodes = {node.name: node for node in describe("quadruped", POLICY)}
    assert nodes["guard"].guards_robot and nodes["deploy"].start_after == "guard"
    assert list(commands("quadruped")) == ["guard", "deploy"]
    assert list(commands("quadruped", dry_run="true")) == ["deploy"], "a guard without commands damps the robot"


def test_only_a_twin_walks_without_a_person_by_default() -> None:
    twin, schedule, person = {"twin": "true"}, {"commands": "schedule"}, {"commands": "person"}
    for values, source in (({}, "person"), (twin, "schedule"), (schedule, "schedule"), (person | twin, "person")):
        assert commands("quadruped", **values)["deploy"]["commands"] == source


@pytest.mark.parametrize("file", files())
def test_ros_arguments_and_environment_reach_every_node(file: str) -> None:
    values = REQUIRED[file] | {"namespace": "left/arm", "domain_id": "7", "log_level": "debug", "bus": "dds"}
    prefix: tuple[str, ...] = ()
    if file != "quadruped":
        values, prefix = values | {"joint_prefix": "fr3_"}, ("-p", "joint_prefix:=fr3_")
    for node in describe(file, values):
        assert node.ros_arguments() == ("--ros-args", "-r", "__ns:=/left/arm", *prefix, "--log-level", "debug")
        assert node.environment == {"ROS_DOMAIN_ID": "7", "ROBOT_RL_BUS": "dds"}
    assert all(not node.ros_arguments() and not node.environment for node in describe(file, REQUIRED[file]))


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("arn", {}, "did you mean arm?"), ("arm", {}, "needs policy:="), ("arm", {"policy": ""}, "needs policy:="),
        ("record", {"twin": "true"}, "needs task:="), ("arm", POLICY | {"polcy": "x"}, "did you mean policy"),
        ("arm", POLICY | {"teleop": "keybord"}, "did you mean keyboard?"),
        ("arm", POLICY | {"seconds": "-1"}, "seconds:=-1"), ("arm", POLICY | {"robot": "pandas"}, "did you mean panda"),
        ("arm", POLICY | {"episodes": "0"}, "1 or more"), ("arm", POLICY | {"episodes": "2.5"}, "whole number"),
        ("finetune", POLICY | {"minutes": "nan"}, "minutes:=nan"),
        *(("twin", {name: text}, f"{name}:={text}")
          for name, text in (("domain_id", "233"), ("namespace", "left arm"), ("joint_prefix", "3_"))),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused(file: str, values: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as error:
        describe(file, values)
    assert error.value.code == 2 and isinstance(error.value, (LaunchError, UnknownName))


def test_defaults_are_valid() -> None:
    for argument in (argument for file in files() for argument in arguments(file)):
        assert argument.description
        assert argument.default is None or argument.check(argument.default) == argument.default


def test_values_that_look_like_options_stay_values() -> None:
    values = {"policy": "--twin", "label": "--debug", "out": "-o"}
    (node,) = [node for node in describe("arm", values) if node.condition]
    parsed = parse(Deploy, list(node.command[1:]), "deploy")
    assert (str(parsed.bundle), parsed.label, str(parsed.out)) == ("--twin", "--debug", "-o")


# ---- ROS 2's launch files ----------------------------------------------------------------------------------------
def visit(file: str, prefix: str | None = None, **values: str) -> list[Any]:
    with stub.installed(prefix):
        description = load(ROOT / "launch" / f"{file}.launch.py").generate_launch_description()
        return stub.run(description, values)


def processes(visited: list[Any]) -> list[Any]:
    return [action for action in visited if isinstance(action, stub.ExecuteProcess | stub.Node)]


def test_ros_declares_the_same_arguments() -> None:
    assert {path.name for path in LAUNCH_FILES} == {f"{name}.launch.py" for name in files()}
    for file in files():
        visited = visit(file, **POLICY, task="panda-lift", teleop="none")
        declared = [action for action in visited if isinstance(action, stub.DeclareLaunchArgument)]
        assert [action.name for action in declared] == [argument.name for argument in arguments(file)]


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [({}, RuntimeError, "policy"), ({"teleop": "keybord"} | POLICY, RuntimeError, "teleop"),
     ({"domain_id": "x"} | POLICY, LaunchError, "domain_id")],
)  # fmt: skip
def test_ros_refuses_invalid_arguments(values: dict[str, str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        visit("arm", **values)


@pytest.mark.parametrize("devices", [[], ["/nonexistent/js0"]])
def test_ros_starts_nothing_without_the_gamepad(monkeypatch: pytest.MonkeyPatch, devices: list[str]) -> None:
    monkeypatch.setattr("real.teleop.joystick.glob", lambda pattern: devices)
    with pytest.raises(LaunchError, match="no gamepad|cannot be opened"):
        visit("arm", **POLICY, teleop="gamepad")


def test_ros_starts_pip_installed_nodes_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("real.launching.launch_actions.require_device", lambda values: None)
    values = {**POLICY, "twin": "true", "teleop": "gamepad", "namespace": "left", "domain_id": "7"}
    visited = visit("finetune", **values)
    nodes = [node for node in describe("finetune", values) if node.condition]
    for process, node in zip(processes(visited), nodes, strict=True):
        assert process.cmd == [sys.executable, "-m", "robot_rl.cli.main", *node.command, *node.ros_arguments()]
        assert (process.name, process.respawn, process.output) == (node.name, node.respawn, "screen")
        assert process.additional_env == {"ROS_DOMAIN_ID": "7"}
        assert (process.on_exit is not None) == node.required
        assert float(process.sigterm_timeout) == 5.0 + node.writes
    handlers = [a.event_handler for a in visited if isinstance(a, stub.RegisterEventHandler)]
    twin, teleop, finetune = processes(visited)
    assert {h.target_action: h.on_start for h in handlers} == {twin: [teleop], teleop: [finetune]}
    assert float(finetune.sigterm_timeout) >= 60.0, "time to write the bundle"


def test_ros_uses_a_colcon_installed_executable(tmp_path: Path) -> None:
    executable = tmp_path / "lib" / "robot_rl" / "robot-rl"
    executable.parent.mkdir(parents=True)
    executable.touch()
    options = {"namespace": "left", "log_level": "debug", "joint_prefix": "fr3_"}
    (twin,) = processes(visit("twin", str(tmp_path), **options))
    assert isinstance(twin, stub.Node)
    assert (twin.package, twin.executable, twin.namespace) == ("robot_rl", "robot-rl", "/left")
    assert twin.arguments[:2] == ["twin", "panda"]
    assert twin.ros_arguments == ["-p", "joint_prefix:=fr3_", "--log-level", "debug"]
    executable.unlink()  # a wheel leaves only the marker
    (twin,) = processes(visit("twin", str(tmp_path)))
    assert not isinstance(twin, stub.Node)


@pytest.mark.parametrize("terminal", ["/usr/bin/xterm", None])
def test_ros_gives_the_keyboard_a_terminal(monkeypatch: pytest.MonkeyPatch, terminal: str | None) -> None:
    monkeypatch.setattr("shutil.which", lambda name: terminal)
    visited = visit("arm", **POLICY, teleop="keyboard")
    prefixes = {process.name: process.prefix for process in processes(visited)}
    assert prefixes == {"deploy": None} | ({"teleop": "xterm -e"} if terminal else {})
    hints = [action.msg for action in visited if isinstance(action, stub.LogInfo)]
    assert bool(hints) == (terminal is None) and all("robot-rl teleop keyboard" in hint for hint in hints)


def test_ros_launch_fails_only_if_a_required_node_failed() -> None:
    """`ros2 launch` returns 1 only after an exception."""
    (deploy,) = processes(visit("arm", **POLICY))
    running, stopping = SimpleNamespace(is_shutdown=False), SimpleNamespace(is_shutdown=True)
    with stub.installed(None):
        for code, context in ((0, running), (-2, stopping)):
            (action,) = deploy.on_exit(SimpleNamespace(returncode=code), context)
            assert isinstance(action, stub.Shutdown)
        (action,) = deploy.on_exit(SimpleNamespace(returncode=1), running)
        with pytest.raises(LaunchError, match="deploy exited with code 1"):
            action.execute(stub.Context({}))


@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda path: path.name)
def test_with_ros_2_itself(path: Path) -> None:
    launch = pytest.importorskip("launch")
    if not hasattr(launch, "LaunchDescription"):  # our own folder `launch`, imported from the root
        pytest.skip("ROS 2's launch is not installed")
    declared = {argument.name for argument in load(path).generate_launch_description().get_launch_arguments()}
    assert declared == {argument.name for argument in arguments(path.name.split(".")[0])}


# ---- robot-rl launch ---------------------------------------------------------------------------------------------
ECHO = (sys.executable, "-I", "-S", "-c", "import sys; print(sys.argv[1:]); sys.exit(3)")


def test_cli_runs_the_description(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "EXECUTABLE", ECHO)
    assert cli.main(["twin.launch.py", "seed:=1", "seed:=2"]) == 3
    out = capfd.readouterr().out
    assert "[twin]   ['twin', 'panda', '--seed', '2']\n" in out and "[launch] twin exited with code 3\n" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["arn"], "did you mean arm?"), (["arm"], "needs policy:="), (["arm", ":=panda"], "is not name:=value"),
        (["arm", "robot=panda"], "did you mean robot:=panda?"), (["arm", "panda"], "did you mean panda:=VALUE?"),
        (["arm", "policy:=x", "robt:=panda"], "did you mean robot"),
        (["arm", "policy:=x", "--twin"], "unknown flag --twin"),
    ],
)  # fmt: skip
def test_cli_refuses_invalid_arguments(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *argv]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and len(captured.err.splitlines()) == 1 and not captured.out
    with pytest.raises(UserError):
        main(["launch", *argv, "--debug"])


def test_cli_lists_files_and_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2 and cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(summary in out for summary in files().values())
    assert cli.main(["arm", "--show-args"]) == 0
    out = capsys.readouterr().out
    assert all(argument.name in out for argument in arguments("arm"))
    assert cli.parse(["policy:=a:=b", "out:="]) == {"policy": "a:=b", "out": ""}
