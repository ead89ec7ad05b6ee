"""A DDS domain for one test."""

import os

import pytest


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> int:
    number = 100 + os.getpid() % 100
    monkeypatch.setenv("ROS_DOMAIN_ID", str(number))
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    return number
