"""What are several hosts on one machine? Network namespaces with a cable each to a switch, made and removed here."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.distributed.launch import ROOT, environment


def missing() -> str:
    """Why there can be no namespaces here, if so."""
    if shutil.which("ip") is None:
        return "the command ip is missing (package iproute2)"
    name = f"pz{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"ip netns is not allowed here ({made.stderr.strip()})"
    linked = subprocess.run(
        ["ip", "-n", name, "link", "add", "try0", "type", "veth", "peer", "name", "try1"],
        capture_output=True,
        text=True,
    )
    _ip("netns", "del", name)
    return f"there are no veth links here ({linked.stderr.strip()})" if linked.returncode else ""


class Host:
    """One of them.

    Attributes:
        address: in the network of all hosts.
        name: of its namespace.
    """

    def __init__(self, switch: str, number: int) -> None:
        self.name, self.address = f"{switch}-{number}", f"10.77.0.{number + 1}"
        self._switch, self._port = switch, f"port{number}"
        _ip("netns", "add", self.name)
        _ip("link", "add", "eth0", "netns", self.name, "type", "veth", "peer", "name", self._port, "netns", switch)
        _ip("-n", switch, "link", "set", self._port, "master", "hub", "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", self.name, "link", "set", device, "up")

    def start(self, *command: Any, log: Path, **more: str) -> subprocess.Popen[bytes]:
        """A process on this host. Its words go to a file."""
        with log.open("wb") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name, *map(str, command)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment(GLOO_SOCKET_IFNAME="eth0", **more),
                cwd=ROOT,
                start_new_session=True,
            )

    def unplug(self) -> None:
        """Nothing goes to this host or comes from it any more, and nobody is told."""
        _ip("-n", self._switch, "link", "set", self._port, "down")

    def sent(self) -> int:
        """Bytes that left this host by its cable, all headers included."""
        found = subprocess.run(
            ["ip", "netns", "exec", self.name, "cat", "/sys/class/net/eth0/statistics/tx_bytes"],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(found.stdout)

    def remove(self) -> None:
        with suppress(subprocess.CalledProcessError):
            for pid in subprocess.run(
                ["ip", "netns", "pids", self.name], capture_output=True, text=True
            ).stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            _ip("netns", "del", self.name)


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many hosts at one switch."""
    switch = f"pz{os.getpid()}"
    made: list[Host] = []
    _ip("netns", "add", switch)
    try:
        _ip("-n", switch, "link", "add", "hub", "type", "bridge")
        _ip("-n", switch, "link", "set", "hub", "up")
        for number in range(count):
            made.append(Host(switch, number))
        yield made
    finally:
        for host in made:
            host.remove()
        _ip("netns", "del", switch)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
