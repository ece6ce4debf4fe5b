"""Shared fixtures. Unmarked tests use neither Ray nor TVM."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tunefarm.devices.device import Device
from tunefarm.devices.probe import probe
from tunefarm.devices.target import Target, make_target
from tunefarm.home import Home

# The machines that run these tests are shared: a slow draw says nothing about the code.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A farm home of the test's own, also for what it runs as a command."""
    root = tmp_path / "home"
    monkeypatch.setenv("TUNEFARM_HOME", str(root))
    monkeypatch.setenv("TUNEFARM_CACHE", str(tmp_path / "cache"))
    return Home(root).prepare()


@pytest.fixture(scope="session")
def target() -> Target:
    """This machine's own: what is built for it runs here."""
    return probe()[0].target


@pytest.fixture
def device() -> Device:
    """A device on paper: what is built for it may not run here."""
    return Device(
        id="cpu-paper-2c-00000000",
        sku="Paper CPU",
        host="paper",
        target=make_target("llvm", {"mcpu": "cascadelake", "num-cores": 2}),
        cores=2,
        memory_bytes=8 * 2**30,
        caches=(32768, 2**20, 2**25),
        features=("avx2", "fma"),
        toolchain=(("linker", "ld"), ("llvm", "22"), ("tvm", "0.27.0.post1")),
    )
