"""Six STS3215 servos on a serial line: Feetech's protocol and memory table behind a pseudo-terminal.

Written from Feetech's manuals of the SMS/STS protocol and of the memory table. Positions are in ticks, 4096 per turn.
"""

from __future__ import annotations

import os
import pty
import select
import threading
import time
import tty
from dataclasses import dataclass, field

PING, READ, WRITE, SYNC_READ, SYNC_WRITE, BROADCAST = 1, 2, 3, 0x82, 0x83, 0xFE
MODEL, LOW, HIGH, OFFSET, TORQUE, GOAL, LOCK = 3, 9, 11, 31, 40, 42, 55
POSITION, VOLTAGE, TEMPERATURE, MOVING = 56, 62, 63, 66
SPEED = 3000.0
"""Speed of a servo, ticks/s."""


@dataclass
class Servo:
    """One servo. It moves to its goal while torque is on."""

    position: float = 2048.0
    memory: bytearray = field(default_factory=lambda: bytearray(128))
    blocked: bool = False
    """Something holds it."""
    silent: bool = False
    """It answers no more."""

    def __post_init__(self) -> None:
        self.memory[0:2] = bytes([3, 10])  # firmware
        self.put(MODEL, 777)
        self.put(HIGH, 4095)
        self.put(GOAL, 2048)
        self.memory[VOLTAGE], self.memory[TEMPERATURE] = 74, 35

    def word(self, address: int) -> int:
        return int.from_bytes(self.memory[address : address + 2], "little")

    def put(self, address: int, value: int) -> None:
        self.memory[address : address + 2] = value.to_bytes(2, "little")

    @property
    def goal(self) -> int:
        return self.word(GOAL)

    @property
    def torque(self) -> bool:
        return bool(self.memory[TORQUE])

    def move(self, seconds: float) -> None:
        """Move for a time, and refresh the memory's readings."""
        goal = min(max(self.goal, self.word(LOW)), self.word(HIGH))
        away = goal - self.position if self.torque and not self.blocked else 0.0
        self.position += min(max(away, -SPEED * seconds), SPEED * seconds)
        self.put(POSITION, round(self.position))
        self.memory[MOVING] = abs(away) > 1


class Servos:
    """The servos with the ids 1 to 6, and the computer's end of their line, `port`."""

    def __init__(self) -> None:
        self.all = {k: Servo() for k in range(1, 7)}
        self.corrupt = 0
        """Number of next replies with a wrong checksum."""
        self.goals: list[tuple[float, dict[int, int]]] = []
        """Time and goals of each synchronous write of them."""
        self.written: set[int] = set()
        """Addresses that were written."""
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        self.port = os.ttyname(self._slave)
        self._moved, self._closing = time.monotonic(), False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def unplug(self) -> None:
        """Pull the cable."""
        if not self._closing:
            self._closing = True
            self._thread.join()
            os.close(self._slave)
            os.close(self._master)

    def _serve(self) -> None:
        line = bytearray()
        while not self._closing:
            if not select.select([self._master], [], [], 0.02)[0]:
                self._move()
                continue
            line += os.read(self._master, 4096)
            while len(line) >= 6 and len(line) >= line[3] + 4:
                packet = bytes(line[: line[3] + 4])
                del line[: len(packet)]
                assert packet[:2] == b"\xff\xff", packet
                if packet[-1] == ~sum(packet[2:-1]) & 0xFF:
                    self._move()
                    self._execute(packet[2], packet[4], packet[5:-1])

    def _move(self) -> None:
        now = time.monotonic()
        for servo in self.all.values():
            servo.move(now - self._moved)
        self._moved = now

    def _execute(self, number: int, instruction: int, data: bytes) -> None:
        if instruction == SYNC_READ:
            for each in data[2:]:
                self._reply(each, self.all[each].memory[data[0] : data[0] + data[1]])
        elif instruction == SYNC_WRITE:
            size, goals = data[1], {}
            for at in range(2, len(data), size + 1):
                self._write(data[at], data[0], data[at + 1 : at + 1 + size])
                goals[data[at]] = int.from_bytes(data[at + 1 : at + 1 + size], "little")
            if data[0] == GOAL:
                self.goals.append((time.monotonic(), goals))
        elif number != BROADCAST and number in self.all:
            if instruction == READ:
                self._reply(number, self.all[number].memory[data[0] : data[0] + data[1]])
            else:
                if instruction == WRITE:
                    self._write(number, data[0], data[1:])
                self._reply(number, b"")

    def _write(self, number: int, address: int, data: bytes) -> None:
        if not self.all[number].silent:
            self.all[number].memory[address : address + len(data)] = data
            self.written.add(address)

    def _reply(self, number: int, data: bytes) -> None:
        if self.all[number].silent:
            return
        body = bytes([number, len(data) + 2, 0, *data])
        checksum = ~sum(body) & 0xFF
        if self.corrupt:
            self.corrupt, checksum = self.corrupt - 1, checksum ^ 0x55
        os.write(self._master, b"\xff\xff" + body + bytes([checksum]))
