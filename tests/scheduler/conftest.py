"""What whole jobs share."""

from __future__ import annotations

from typing import Any

import pytest

from tests import models
from tests.command import tunefarm
from tunefarm.home import Home


@pytest.fixture(scope="session")
def farm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One finished job on a small network, for every test that only looks at it."""
    root = tmp_path_factory.mktemp("farm")
    env = {"TUNEFARM_HOME": str(root / "home"), "TUNEFARM_CACHE": str(root / "cache")}
    model = models.cnn(root / "cnn.onnx")
    done = tunefarm("submit", model, "--targets", "llvm", "--trials", 30, "--json", **env)
    assert done.code == 0, done.err
    return {"env": env, "home": Home(root / "home"), "done": done, "model": model, "root": root}
