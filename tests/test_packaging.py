"""What makes the repository installable: by pip with pinned versions, and as a ROS 2 package by colcon."""

import configparser
import re
import shutil
import subprocess
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[0-9][0-9a-z.]*)")


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] != "#"]
    found = [PIN.fullmatch(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {normal(match["name"]): match["version"] for match in found if match}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_are_pins_only() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text and "@" not in text
    names = [line.partition("==")[0] for line in text.splitlines() if "==" in line]
    assert names == sorted(set(names))
    assert "robot-rl" not in names


def test_constraints_cover_and_satisfy_every_direct_dependency() -> None:
    requirements = pytest.importorskip("packaging.requirements")
    pinned = pins()
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for requirement in [requirements.Requirement(text) for group in groups for text in group]:
        if normal(requirement.name) == "robot-rl":
            continue
        assert normal(requirement.name) in pinned, f"{requirement.name} has no pin in constraints.txt"
        assert requirement.specifier.contains(pinned[normal(requirement.name)]), requirement


def test_both_opencv_builds_are_one_version() -> None:
    # They write the same files: two versions would leave a mixture.
    assert pins()["opencv-python"] == pins()["opencv-python-headless"]


def test_package_xml() -> None:
    root = ElementTree.parse(ROOT / "package.xml").getroot()
    assert (root.tag, root.get("format")) == ("package", "3")
    order = [child.tag for child in root]
    needed = ["name", "version", "description", "maintainer", "license"]
    assert [tag for tag in order if tag in needed] == needed
    assert re.fullmatch(r"[a-z][a-z0-9_]+", root.findtext("name") or "")
    assert root.findtext("version") == PROJECT["version"]
    assert root.findtext("export/build_type") == "ament_python"
    maintainer = root.find("maintainer")
    assert maintainer is not None and "@" in maintainer.get("email", "")
    depends = [child.text for child in root.iter("exec_depend")]
    assert {"rclpy", "launch", "launch_ros", "sensor_msgs"} <= set(depends)
    assert len(depends) == len(set(depends))


def test_ament_finds_marker_executable_and_launch_files(tmp_path: Path) -> None:
    name = ElementTree.parse(ROOT / "package.xml").getroot().findtext("name")
    assert (ROOT / "resource" / str(name)).exists()
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert settings["develop"]["script_dir"] == settings["install"]["install_scripts"] == f"$base/lib/{name}"
    text = (ROOT / "setup.py").read_text()
    for target in ("share/ament_index/resource_index/packages", f"share/{name}", f"share/{name}/launch"):
        assert f'"{target}"' in text


def test_colcon_can_read_the_project() -> None:
    # ROS 2 Jazzy's setuptools 68 refuses the first as a string, colcon cannot parse the second from there.
    assert {"license", "requires-python"} <= set(PROJECT["dynamic"])
    assert "pyproject.toml" in (ROOT / "setup.py").read_text().split("setup(", 1)[1]


def test_every_folder_of_modules_is_a_package() -> None:
    # An editable install finds the others too, a wheel and colcon do not.
    for package in ("robot_rl", "policies", "sim", "real"):
        folders = {path.parent for path in (ROOT / package).rglob("*.py")}
        assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_system_packages_asks_for_nothing_twice() -> None:
    script = (ROOT / ".ci" / "system-packages").read_text()
    assert "apt-get" in script and "set -eu" in script
    for file in (".ci/system-packages", ".ci/run"):
        assert (ROOT / file).stat().st_mode & 0o111, f"{file} is not executable"
        shell = "sh" if file.endswith("packages") else "bash"
        subprocess.run([shell, "-n", str(ROOT / file)], check=True)


def _without_apt(tmp_path: Path, *programs: str) -> dict[str, str]:
    for program in programs:
        found = shutil.which(program)
        assert found is not None
        (tmp_path / program).symlink_to(found)
    ldconfig = tmp_path / "ldconfig"  # a machine without any of the libraries
    ldconfig.write_text("#!/bin/sh\n")
    ldconfig.chmod(0o755)
    return {"PATH": str(tmp_path)}


def test_system_packages_without_apt_says_what_is_missing(tmp_path: Path) -> None:
    environment = _without_apt(tmp_path, "sh", "ls", "grep", "basename")
    script = (ROOT / ".ci" / "system-packages").read_text().replace("PATH=$PATH:/usr/sbin:/sbin", "")
    command = [str(tmp_path / "sh"), "-c", script, "system-packages", "python3.12"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    for package in ("libegl1", "libgl1", "libopengl0", "libegl-mesa0", "python3.12-venv"):
        assert package in done.stderr
    assert "package manager" in done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_refuses_another_python(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\nif [ "$1" = -V ]; then echo Python 3.10.1; else exit 1; fi\n')
    python.chmod(0o755)
    for file in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py", "setup.cfg"):
        shutil.copy(ROOT / file, tmp_path)
    command = ["make", "-C", str(tmp_path), f"PYTHON={python}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "needs Python 3.11, 3.12 or 3.13, not Python 3.10.1" in done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_does_nothing_twice(tmp_path: Path) -> None:
    for file in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py", "setup.cfg"):
        shutil.copy(ROOT / file, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    done = subprocess.run(["make", "-C", str(tmp_path), "-q", "install"], capture_output=True)
    assert done.returncode == 0  # nothing to do
    subprocess.run(["touch", "-d", "+1 minute", str(tmp_path / "constraints.txt")], check=True)
    done = subprocess.run(["make", "-C", str(tmp_path), "-q", "install"], capture_output=True)
    assert done.returncode == 1  # set up again: the pins have changed
