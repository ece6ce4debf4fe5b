"""The artifact's bill of materials, in CycloneDX."""

from __future__ import annotations

from importlib.metadata import version

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6

from tunefarm.frontend.program import Program
from tunefarm.results.facts import Job, JobTarget

_BUILT_WITH = ("apache-tvm", "apache-tvm-ffi", "tunefarm", "onnx", "numpy")


def sbom(job: Job, target: JobTarget, program: Program) -> bytes:
    """The model, and what compiled it into the library."""
    model = Component(
        name=job.model_source,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="model",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=program.evidence["digest"])],
    )
    library = Component(
        name=f"{job.name}-{target.name}", type=ComponentType.LIBRARY, bom_ref="library"
    )
    bom = Bom()
    bom.metadata.component = library
    bom.components.add(model)
    parts = [model]
    for name in _BUILT_WITH:
        component = Component(
            name=name, version=version(name), type=ComponentType.LIBRARY, bom_ref=name
        )
        bom.components.add(component)
        parts.append(component)
    for name, text in target.device.toolchain:
        if name in ("llvm", "linker", "libc"):
            component = Component(
                name=name, version=text, type=ComponentType.APPLICATION, bom_ref=name
            )
            bom.components.add(component)
            parts.append(component)
    bom.register_dependency(library, parts)
    return (str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n").encode()
