from __future__ import annotations

import pytest
from hypothesis import given

from tests import strategies as our
from tunefarm.devices.target import (
    Target,
    make_target,
    parse_target,
    parse_targets,
    target_from_json,
)
from tunefarm.errors import UnsupportedTarget, UsageError


@pytest.mark.slow
@given(our.targets())
def test_text_and_json_are_read_back(target: Target) -> None:
    assert parse_target(target.text) == target
    assert target_from_json(target.to_json()) == target


def test_host_is_the_cpu() -> None:
    assert parse_target("host") == make_target("llvm", {})


@pytest.mark.parametrize("text", ["vax", "opencl", "llvmx", "-"])
def test_an_unknown_kind_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(UnsupportedTarget) as caught:
        parse_target(text)
    assert "llvm" in caught.value.hint
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("text", ["llvm:mcpu", "llvm:=x", "llvm:mcpu="])
def test_an_attribute_needs_a_value(text: str) -> None:
    with pytest.raises(UsageError):
        parse_target(text)


def test_a_list_names_each_target_once() -> None:
    assert [t.kind for t in parse_targets("cuda, llvm,llvm")] == ["cuda", "llvm"]
    with pytest.raises(UsageError):
        parse_targets(" , ")


def test_a_target_admits_what_has_its_attributes() -> None:
    device = make_target("llvm", {"mcpu": "znver5", "num-cores": 8})
    assert parse_target("llvm").admits(device)
    assert parse_target("llvm:mcpu=znver5").admits(device)
    assert not parse_target("llvm:mcpu=skylake").admits(device)
    assert not parse_target("cuda").admits(device)
    assert parse_target("llvm:num-cores=8").with_attrs(dict(device.attrs)) == device


def test_what_kernels_may_do_is_nothing_of_the_hardware() -> None:
    """It is kept, and neither devices nor TVM are asked for it."""
    allowed = parse_target("cuda:arch=sm_80:precision=tf32")
    device = make_target("cuda", {"arch": "sm_80"})
    assert allowed.admits(device)
    assert allowed.hardware == device
    assert allowed.tvm == device.tvm
    assert allowed.with_attrs(dict(device.attrs)) == allowed != device
    assert target_from_json(allowed.to_json()) == allowed
    with pytest.raises(UnsupportedTarget, match="no precision 'tf32' is known of processors"):
        parse_target("llvm:precision=tf32")
    half = parse_target("llvm:mcpu=sapphirerapids:precision=bfloat16")
    assert half.admits(make_target("llvm", {"mcpu": "sapphirerapids", "num-cores": 2}))
    assert half.hardware == parse_target("llvm:mcpu=sapphirerapids:precision=float32")
    assert parse_target("cuda:arch=sm_80:precision=float32") == device, "as it is anyway"


@pytest.mark.tvm
def test_a_tag_has_attributes_too() -> None:
    target = parse_target("nvidia/nvidia-a100:precision=tf32")
    assert (target.get("arch"), target.get("precision")) == ("sm_80", "tf32")
    assert parse_target("nvidia/nvidia-a100:arch=sm_86").get("arch") == "sm_86"
