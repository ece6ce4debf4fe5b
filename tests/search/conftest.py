"""What the tests of design spaces share: one import of each model, one pair of workers."""

from __future__ import annotations

import pytest

from tests import models
from tests.bench import imported, pair_of_workers
from tunefarm.frontend.program import Program


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, target) -> Program:
    directory = tmp_path_factory.mktemp("spaces")
    return imported(directory, models.cnn(directory / "cnn.onnx"), target)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory, target) -> Program:
    directory = tmp_path_factory.mktemp("kernels")
    return imported(directory, models.kernels(directory / "kernels.onnx"), target)


@pytest.fixture(scope="session")
def workers():
    with pair_of_workers() as pair:
        yield pair
