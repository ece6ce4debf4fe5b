"""A bundle of requests that nothing has to run for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulated import requests_on_paper
from tunefarm.devices.device import Device
from tunefarm.devices.target import make_target
from tunefarm.measure.bundles.bundle import write_bundle
from tunefarm.measure.files import needs


@pytest.fixture
def paper(tmp_path: Path, device: Device):
    """A bundle for a simulated GPU: its path, its requests, the job's directory, the device."""
    root = tmp_path / "job"
    requests = requests_on_paper(root)
    gpu = replace(device, target=make_target("cuda", {"arch": "sm_90"}), sku="Paper GPU")
    path = tmp_path / "one.bundle"
    files = [file for one in requests for file in needs(one) if file.exists()]
    write_bundle(path, "job", gpu.target, gpu.fingerprint, requests, root, files)
    return path, requests, root, gpu
