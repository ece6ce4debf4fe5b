"""How a job ends some of whose targets have failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefarm.errors import DeviceLost, JobFailed, UnsupportedModel
from tunefarm.results.artifact import Packaged
from tunefarm.scheduler.driver import of_several


@pytest.mark.parametrize("first", [JobFailed, UnsupportedModel, DeviceLost])
def test_all_that_failed_is_said_and_what_was_packaged(first: type[JobFailed]) -> None:
    """With the exit code of the first, in the targets' order."""
    failed = {"cuda": first("no kernels", hint="Look."), "llvm": JobFailed("it is wrong")}
    error = of_several(failed, {"llvm:mcpu=znver5": Packaged(Path("a.tfa"), "d", {})})
    assert error.exit_code == first.exit_code
    assert error.message == "cuda: no kernels; llvm: it is wrong"
    assert error.hint == "Look. Packaged all the same: llvm:mcpu=znver5: a.tfa"
    assert of_several(failed, {}).hint == "Look."
