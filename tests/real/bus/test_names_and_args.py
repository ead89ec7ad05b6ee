import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from real.bus import BusError
from real.bus.names import Remap, check_namespace, dds_topic, resolve
from real.bus.rosargs import parameters_for, parse

VALID = re.compile(r"(/[A-Za-z_][A-Za-z0-9_]*)+")
token = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)


@pytest.mark.parametrize(
    ("name", "full"),
    [("joint_states", "/arm/joint_states"), ("/joint_states", "/joint_states"), ("~/debug", "/arm/policy/debug"),
     ("~", "/arm/policy"), ("{ns}/a", "/arm/a"), ("{node}/a", "/arm/policy/a"), ("a/_hidden", "/arm/a/_hidden")],
)  # fmt: skip
def test_names_expand_as_in_ros(name: str, full: str) -> None:
    assert resolve(name, "policy", "/arm") == full


def test_root_namespace() -> None:
    assert resolve("a", "n", "/") == "/a"
    assert resolve("~/a", "n", "/") == "/n/a"
    assert resolve("{ns}/a", "n", "/") == "/a"
    assert [check_namespace(n) for n in ("", "/", "arm", "/arm")] == ["/", "/", "/arm", "/arm"]


@pytest.mark.parametrize("bad", ["", "a//b", "a/", "/", "1a", "a/2b", "a-b", "~a", "a b", "{x}", "é", "//a"])
def test_invalid_names_are_refused(bad: str) -> None:
    with pytest.raises(BusError, match="name"):
        resolve(bad, "policy", "/arm")


@given(st.text(max_size=20) | st.text("ab1_/~{}", max_size=12))
def test_accepted_names_are_valid(name: str) -> None:
    try:
        full = resolve(name, "policy", "/arm")
    except BusError:
        return
    assert VALID.fullmatch(full) and dds_topic(full) == "rt" + full


@given(token, token, token, token)
def test_remap_applies_to_every_notation_of_a_name(ns: str, node: str, old: str, new: str) -> None:
    rules = [Remap(f"/{ns}/{old}", new)]
    for written in (old, f"/{ns}/{old}", f"{{ns}}/{old}"):
        assert resolve(written, node, f"/{ns}", rules) == f"/{ns}/{new}"
    other = [Remap(old, new, node=node + "x")]
    assert resolve(old, node, f"/{ns}", other) == f"/{ns}/{old}"


def test_all_ros_arguments(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "/**:\n  ros__parameters:\n    rate: 50\n    limits: {v: 1e-3, names: [a, b]}\n"
        "/arm/run:\n  ros__parameters: {rate: 100}\n"
        "/arm/other:\n  ros__parameters: {rate: 7}\n"
        "arm:\n  run:\n    ros__parameters: {nested: true}\n"
    )
    args = ["prog", "x:=y", "--ros-args", "-r", "__ns:=/arm", "--remap", "__node:=run", "-r", "a:=b",
            "-r", "other:c:=d", "--params-file", str(file), "-p", "gain:=2.5", "-p", "other:gain:=9",
            "--log-level", "debug", "--disable-rosout-logs", "--", "-r", "z:=y"]  # fmt: skip
    got = parse("policy", "/", args)
    assert (got.name, got.namespace, got.log_level) == ("run", "/arm", 10)
    assert got.parameters == {
        "rate": 100, "limits.v": 0.001, "limits.names": ["a", "b"], "nested": True, "gain": 2.5,
    }  # fmt: skip
    assert resolve("a", got.name, got.namespace, got.remaps) == "/arm/b"
    assert resolve("c", got.name, got.namespace, got.remaps) == "/arm/c"
    assert resolve("z", got.name, got.namespace, got.remaps) == "/arm/z"


def test_later_arguments_take_precedence(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("/**: {ros__parameters: {k: file}}")
    flag, path = ["-p", "k:=flag"], ["--params-file", str(file)]
    assert parse("n", args=["--ros-args", *flag, *path]).parameters == {"k": "file"}
    assert parse("n", args=["--ros-args", *path, *flag]).parameters == {"k": "flag"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_parameter_files_in_all_encodings_of_yaml_and_invalid_ones(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes("/**: {ros__parameters: {k: Prüfstand}}".encode(encoding))
    assert parse("n", args=["--ros-args", "--params-file", str(file)]).parameters == {"k": "Prüfstand"}
    for content, reason in ((b"\xfc: 1", "YAML"), (b"rate: 50\n", "ros__parameters")):
        file.write_bytes(content)
        with pytest.raises(BusError, match=reason):
            parse("n", args=["--ros-args", "--params-file", str(file)])


@given(st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False))
def test_parameters_keep_value_and_type(value: float) -> None:
    got = parse("n", args=["--ros-args", "-p", f"k:={str(value).lower()}"]).parameters["k"]
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("pattern", "hits"),
    [("/**", True), ("/arm/run", True), ("/arm/*", True), ("/*/run", True), ("/**/run", True), ("run", False),
     ("/*", False), ("/arm", False), ("/arm/ru", False)],
)  # fmt: skip
def test_parameter_file_patterns(pattern: str, hits: bool) -> None:
    assert parameters_for("/arm/run", {pattern: {"ros__parameters": {"k": 1}}}) == ({"k": 1} if hits else {})


@pytest.mark.parametrize(
    ("args", "message"),
    [(["-r", "a"], "old:=new"), (["-r"], "needs a value"), (["--nonsense"], "unknown ROS argument"),
     (["-p", "k:=[1,"], "YAML"), (["--params-file", "/no/such.yaml"], "check the path"),
     (["--log-level", "loud"], "debug, info"), (["-r", "__node:=1x"], "digit"), (["-r", "__ns:=a b"], "namespace")],
)  # fmt: skip
def test_invalid_arguments_are_refused(args: list[str], message: str) -> None:
    with pytest.raises(BusError, match=message):
        parse("n", args=["--ros-args", *args])
