"""Networks as PyTorch exports them, by either of its exporters: which are imported and built right.

    python benchmarks/exports.py write DIRECTORY [--as-used] [--exporter tracing|dynamo]
    python benchmarks/exports.py quantise DIRECTORY --quantised KIND
    python benchmarks/exports.py check DIRECTORY RESULTS.json [--target T] [--quantised KIND]

The first needs torch, transformers, timm and torchvision, and nothing of tunefarm: an environment
of its own. Weights are random (seeded); transformers are small ones of their kind, the others as
large as people use them. The second puts others beside them, `NAME-KIND.onnx`, quantised by ONNX
Runtime's tool as the zoo's are. The third compares the untuned build and the program that is tuned
with ONNX Runtime, each network in a process of its own; where the target's products round, or
networks are quantised first, as a job compares them. With `--as-used` fewer networks are written,
all of them of the size people use: `benchmarks/networks.py --files` tunes them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

_CLASSIFIERS = (
    *("convnextv2_atto", "maxvit_nano_rw_256", "coatnet_nano_rw_224", "xcit_nano_12_p16_224"),
    *("poolformer_s12", "mixer_s32_224", "hrnet_w18_small", "inception_v4", "dpn48b"),
    *("res2net50_26w_4s", "skresnet18", "repvgg_a0", "levit_128s", "pvt_v2_b0", "davit_tiny"),
    *("twins_svt_small", "cait_xxs24_224", "beit_base_patch16_224", "edgenext_xx_small"),
    *("mobilevit_xxs", "efficientformer_l1", "fastvit_t8", "tiny_vit_5m_224", "dla34"),
    *("focalnet_tiny_srf", "nfnet_l0", "mobilenetv4_conv_small", "ghostnet_100", "vgg11_bn"),
    *("regnety_002", "resnext50_32x4d", "efficientnetv2_rw_t", "resnest14d", "crossvit_tiny_240"),
    *("gcvit_xxtiny", "mvitv2_tiny", "hgnet_tiny", "lcnet_050", "tinynet_e", "nasnetalarge"),
    *("rexnet_100", "repghostnet_050", "starnet_s1", "swinv2_tiny_window8_256", "visformer_tiny"),
    *("convmixer_768_32", "eva02_tiny_patch14_224", "hiera_tiny_224", "inception_next_tiny"),
)
"""By timm's names."""
_OTHERS = {
    "segmentation.deeplabv3_mobilenet_v3_large": (3, 128, 128),
    "segmentation.lraspp_mobilenet_v3_large": (3, 128, 128),
    "video.r3d_18": (3, 8, 64, 64),
    "video.s3d": (3, 16, 64, 64),
    "shufflenet_v2_x0_5": (3, 128, 128),
    "mnasnet0_5": (3, 128, 128),
    "detection.ssdlite320_mobilenet_v3_large": (3, 320, 320),
}
"""By torchvision's names, with the shape of what each looks at."""
_WIDTHS = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
_WIDTHS |= {"intermediate_size": 512}
_TINY = {"layers": 4, "attention_heads": 6, "ffn_dim": 1536}

_EXPORTERS = ("tracing", "dynamo")

Made = tuple[Any, tuple[Any, ...]]
"""A module, and what it is called with."""


def _transformers() -> dict[str, Callable[[], Made]]:
    import torch
    import transformers as tf

    def ids(count: int = 32) -> Any:
        return torch.randint(0, 100, (1, count))

    def masked(kind: str, config: Any) -> Callable[[], Made]:
        ones = torch.ones(1, 32, dtype=torch.long)
        return lambda: (getattr(tf, kind)(config), (ids(), ones))

    def words(kind: str, config: Any, part: str = "") -> Callable[[], Made]:
        def make() -> Made:
            model = getattr(tf, kind)(config)
            return (getattr(model, part) if part else model), (ids(),)

        return make

    def pictures(kind: str, config: Any, size: int = 224) -> Callable[[], Made]:
        return lambda: (getattr(tf, kind)(config), (torch.randn(1, 3, size, size),))

    words_of = {"vocab_size": 1000, "use_cache": False}
    grouped = _WIDTHS | words_of | {"num_key_value_heads": 2}
    t5 = {"d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 2, "num_heads": 4}
    halves = {
        f"{half}_{name}": value
        for half in ("encoder", "decoder")
        for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 512))
    } | {"d_model": 256, "vocab_size": 1000}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    speech = tf.WhisperConfig(**halves, **special, decoder_start_token_id=1)
    waves = tf.Wav2Vec2Config(**_WIDTHS, conv_dim=(64,) * 7, num_conv_pos_embedding_groups=4)
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    return {
        "bert": masked("BertModel", tf.BertConfig(**_WIDTHS)),
        "roberta": masked("RobertaModel", tf.RobertaConfig(**_WIDTHS)),
        "distilbert": masked(
            "DistilBertModel", tf.DistilBertConfig(dim=256, n_layers=2, n_heads=4, hidden_dim=512)
        ),
        "deberta": masked(
            "DebertaV2Model",
            tf.DebertaV2Config(**_WIDTHS, **relative, vocab_size=1000, position_biased_input=False),
        ),
        "gpt2": words(
            "GPT2LMHeadModel", tf.GPT2Config(n_embd=256, n_layer=2, n_head=4, use_cache=False)
        ),
        "llama": words("LlamaForCausalLM", tf.LlamaConfig(**grouped)),
        "qwen2": words("Qwen2ForCausalLM", tf.Qwen2Config(**grouped)),
        "gemma2": words("Gemma2ForCausalLM", tf.Gemma2Config(**grouped, head_dim=64)),
        "mamba": words(
            "MambaModel",
            tf.MambaConfig(hidden_size=64, num_hidden_layers=1, vocab_size=100, use_cache=False),
        ),
        "t5_encoder": words("T5EncoderModel", tf.T5Config(**t5, vocab_size=1000)),
        "bart_encoder": words("BartModel", tf.BartConfig(**halves), "encoder"),
        "vit": pictures("ViTModel", tf.ViTConfig(**_WIDTHS)),
        "deit": pictures("DeiTModel", tf.DeiTConfig(**_WIDTHS)),
        "clip_vision": pictures("CLIPVisionModel", tf.CLIPVisionConfig(**_WIDTHS)),
        "swin": pictures("SwinModel", tf.SwinConfig(embed_dim=48, depths=[2, 2], num_heads=[3, 6])),
        "convnext": pictures(
            "ConvNextModel",
            tf.ConvNextConfig(depths=[1, 1, 2, 1], hidden_sizes=[32, 64, 128, 256]),
        ),
        "segformer": pictures(
            "SegformerForSemanticSegmentation",
            tf.SegformerConfig(depths=[1] * 4, hidden_sizes=[16, 32, 64, 128], num_labels=10),
            128,
        ),
        "yolos": pictures(
            "YolosForObjectDetection",
            tf.YolosConfig(**_WIDTHS, image_size=[128, 128], num_detection_tokens=10),
            128,
        ),
        "whisper_encoder": lambda: (
            tf.WhisperModel(speech).encoder,
            (torch.randn(1, 80, 3000),),
        ),
        "wav2vec2": lambda: (tf.Wav2Vec2Model(waves), (torch.randn(1, 16000),)),
    }


def _recurrent() -> dict[str, Callable[[], Made]]:
    import torch
    from torch import nn

    class First(nn.Module):  # type: ignore[misc]
        """Of what a recurrence gives, its outputs."""

        def __init__(self, one: Any) -> None:
            super().__init__()
            self.one = one

        def forward(self, *given: Any) -> Any:
            return self.one(*given)[0]

    class Spectrum(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("window", torch.hann_window(400))
            self.mixed = nn.Conv1d(201, 64, 3)

        def forward(self, wave: Any) -> Any:
            given = {"center": False, "return_complex": False, "onesided": True}
            parts = torch.stft(wave, 400, 160, 400, self.window, **given)
            return self.mixed(torch.log(parts.pow(2).sum(-1) + 1e-6))

    def lstm() -> Made:
        return First(nn.LSTM(64, 128, 2, bidirectional=True)), (torch.randn(20, 1, 64),)

    def gru() -> Made:
        return nn.GRU(40, 128, 2), (torch.randn(20, 1, 40), torch.randn(2, 1, 128))

    return {"lstm": lstm, "gru": gru, "stft": lambda: (Spectrum(), (torch.randn(1, 16000),))}


def _classifier(name: str) -> Callable[[], Made]:
    """By timm's name."""
    import timm
    import torch

    def make() -> Made:
        model = timm.create_model(name, pretrained=False)
        return model, (torch.randn(1, *model.default_cfg["input_size"]),)

    return make


def _pictures() -> dict[str, Callable[[], Made]]:
    import torch
    import torchvision.models as tv

    def other(name: str, shape: tuple[int, ...]) -> Callable[[], Made]:
        *path, last = name.split(".")
        room = getattr(tv, path[0]) if path else tv
        none = {"weights": None}
        if path and path[0] in ("segmentation", "detection"):
            none["weights_backbone"] = None
        return lambda: (getattr(room, last)(**none), (torch.randn(1, *shape),))

    found = {name: _classifier(name) for name in _CLASSIFIERS}
    return found | {name.replace(".", "_"): other(name, s) for name, s in _OTHERS.items()}


def _as_used() -> dict[str, Callable[[], Made]]:
    """Of common sizes: sentences of 128 words, one of 512, pictures of the size each was trained
    for, 30 s of speech, and one."""
    import torch
    import torchvision.models as tv
    import transformers as tf

    def words(kind: str, config: Any, many: int = 128) -> Callable[[], Made]:
        ones = torch.ones(1, many, dtype=torch.long)
        ids = torch.randint(0, 1000, (1, many))
        return lambda: (getattr(tf, kind)(config), (ids, ones))

    small = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
    heard = {f"{half}_{name}": n for half in ("encoder", "decoder") for name, n in _TINY.items()}
    named = ("deit_small_patch16_224", "convnext_tiny", "swin_tiny_patch4_window7_224")
    named += ("mobilenetv4_conv_small", "efficientformer_l1", "mobilevit_xs", "regnety_008")
    named += ("inception_v3",)
    return {
        "minilm": words("BertModel", tf.BertConfig(**small, intermediate_size=1536)),
        "distilbert": words("DistilBertModel", tf.DistilBertConfig()),
        "bert_of_2_layers": words("BertModel", tf.BertConfig(num_hidden_layers=2), 512),
        "vit_of_4_layers": lambda: (
            tf.ViTModel(tf.ViTConfig(num_hidden_layers=4)),
            (torch.randn(1, 3, 224, 224),),
        ),
        "whisper_tiny_encoder": lambda: (
            tf.WhisperModel(tf.WhisperConfig(**heard, d_model=384)).encoder,
            (torch.randn(1, 80, 3000),),
        ),
        "wav2vec2_of_4_layers": lambda: (
            tf.Wav2Vec2Model(tf.Wav2Vec2Config(num_hidden_layers=4)),
            (torch.randn(1, 16000),),
        ),
        "segformer_b0": lambda: (
            tf.SegformerForSemanticSegmentation(tf.SegformerConfig(num_labels=150)),
            (torch.randn(1, 3, 512, 512),),
        ),
        "lraspp_mobilenet_v3": lambda: (
            tv.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None),
            (torch.randn(1, 3, 320, 320),),
        ),
    } | {name.split("_patch")[0]: _classifier(name) for name in named}


def write(directory: Path, as_used: bool, exporters: Sequence[str]) -> None:
    # transformers looks for a package named "kernels", which the file beside this one is not.
    sys.path = [path for path in sys.path if Path(path) != Path(__file__).parent]
    directory.mkdir(parents=True, exist_ok=True)
    if as_used:  # by the first exporter that takes it
        for name, make in _as_used().items():
            any(_export(make, directory, name, exporter) for exporter in exporters)
        return
    for name, make in {**_transformers(), **_recurrent()}.items():
        for exporter in exporters:
            _export(make, directory, name, exporter)
    for name, make in _pictures().items():
        _export(make, directory, name, exporters[0])


def _export(make: Callable[[], Made], directory: Path, name: str, exporter: str) -> bool:
    """Whether the file is there."""
    import torch

    file = directory / f"{name}-{exporter}.onnx"
    if file.exists():
        return True
    torch.manual_seed(0)
    given: dict[str, Any] = {"dynamo": False, "opset_version": 17}
    if exporter == "dynamo":
        given = {"dynamo": True, "external_data": False}
    try:
        module, arguments = make()
        with torch.no_grad():
            torch.onnx.export(module.eval(), arguments, str(file), **given)
    except Exception as error:
        file.unlink(missing_ok=True)
        last = (str(error).strip().splitlines() or [""])[-1]
        print(f"{file.name}: not exported: {type(error).__name__}: {last}", flush=True)
        return False
    print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB", flush=True)
    return True


def case_of(name: str, model: onnx.ModelProto, target: str, moving: bool) -> Any:
    """With inputs of a seed, what ONNX Runtime makes of them, and, if it is `moving`, how far that
    moves with them."""
    import onnxruntime
    from operators import Case

    from tunefarm.measure.expected import moves

    generator = np.random.default_rng(0)
    constants = {one.name for one in model.graph.initializer}
    inputs: dict[str, Any] = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind == "f":
            inputs[value.name] = generator.normal(0, 1, shape).astype(dtype)
        elif "mask" in value.name:
            inputs[value.name] = np.ones(shape, dtype)
        else:
            inputs[value.name] = generator.integers(0, 90, shape).astype(dtype)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    held = model.SerializeToString()
    session = onnxruntime.InferenceSession(held, options, ["CPUExecutionProvider"])

    def answer(arrays: list[Any]) -> list[Any]:
        return list(session.run(None, dict(zip(inputs, arrays, strict=True))))

    given = list(inputs.values())
    outputs = answer(given)
    moved = moves(answer, given, outputs) if moving else 0.0
    return Case(name, model, given, outputs, whole=True, target=target, moved=moved)


def quantise(directory: Path, kind: str) -> None:
    from tunefarm.frontend.zoo.quantiser import KINDS, quantised

    if kind not in KINDS:
        raise SystemExit(f"--quantised: one of {', '.join(KINDS)}")
    for file in sorted(directory.glob("*.onnx")):
        if not file.stem.endswith(KINDS):
            made = file.with_stem(f"{file.stem}-{kind}")
            onnx.save(quantised(onnx.load(file), kind), made)
            print(f"{made.name}: {made.stat().st_size / 1e6:.1f} MB", flush=True)


def check(directory: Path, results: Path, target: str, kind: str) -> None:
    from operators import RIGHT, alone, load

    from tunefarm.frontend.quantised.passes import is_quantised
    from tunefarm.frontend.zoo.quantiser import KINDS, quantised

    load()
    rows = []
    for file in sorted(directory.glob("*.onnx")):
        if kind and file.stem.endswith(KINDS):
            continue  # it is one of those that `quantise` made
        model = onnx.load(file)
        try:
            model = quantised(model, kind) if kind else model
        except Exception as error:  # (of that tool's)
            print(f"{file.stem}: not quantised: {type(error).__name__}: {error}", flush=True)
            continue
        case, started = case_of(file.stem, model, target, is_quantised(model)), time.monotonic()
        what, why = alone(case)
        seconds = time.monotonic() - started
        nodes = len(case.model.graph.node)
        why = re.sub(r"\s+", " ", why)
        row = {"export": file.stem, "nodes": nodes, "what": what, "why": why}
        rows.append(row | {"seconds": round(seconds, 1)})
        print(f"{file.stem}: {what} {why} ({nodes} nodes, {seconds:.1f} s)", flush=True)
        counts = dict(Counter(str(row["what"]) for row in rows))
        results.write_text(json.dumps({"came to": counts, "exports": rows}, indent=1))
    right = sum(row["what"] == RIGHT for row in rows)
    print(f"{right} of {len(rows)} exports are computed right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["write", "quantise", "check"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--as-used", action="store_true", help="fewer, of the sizes people use")
    parser.add_argument("--exporter", choices=_EXPORTERS, help="this one alone")
    parser.add_argument("--target", default="llvm", help="what checked ones are built for")
    parser.add_argument("--quantised", default="", metavar="KIND", help="uint8, int8, dynamic, ...")
    arguments = parser.parse_args()
    if arguments.action == "write":
        exporters = [arguments.exporter] if arguments.exporter else list(_EXPORTERS)
        write(arguments.directory, arguments.as_used, exporters)
    elif arguments.action == "quantise":
        quantise(arguments.directory, arguments.quantised)
    elif arguments.results is None:
        parser.error("where are the results to be written?")
    else:
        check(arguments.directory, arguments.results, arguments.target, arguments.quantised)


if __name__ == "__main__":
    main()
