"""Who races, with which weights and settings. To add a contender, add a line here (and a module in contenders/)."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One line of the result table."""

    name: str
    peer: str
    """Module in contenders/, and the name of its environment."""

    recipe: dict[str, Any]
    """What `prepare` gets; entries of one peer with the same `weights` share the prepared files."""

    weights: str
    """Name of the prepared folder, within the peer."""

    options: dict[str, Any] = field(default_factory=dict)
    """Engine settings."""

    models: tuple[str, ...] = ("smollm2", "qwen3-0.6b")


def _llama(name: str, kind: str, **options: Any) -> Entry:
    return Entry(f"llama.cpp {name}", "llama_cpp", {"type": kind}, kind.lower(), options)


def _genai(name: str, precision: str, weights: str, **extra: str) -> Entry:
    # Best settings found for it: the head computes the last position only, gate and up are one product.
    extra = {"prune_lm_head": "true", "fuse_mlp_gate_up": "true", **extra}
    recipe = {"precision": precision, "extra": extra}
    return Entry(f"onnxruntime-genai {name}", "onnxruntime_genai", recipe, weights)


def _openvino(name: str, weights: str, *arguments: str) -> Entry:
    recipe = {"arguments": ["--weight-format", *arguments]}
    return Entry(f"openvino-genai {name}", "openvino_genai", recipe, weights)


def _edgewright(recipe: str, engine: str = "", title: str = "") -> Entry:
    if not engine:
        return Entry(f"edgewright {recipe}", "edgewright", {"recipe": recipe}, recipe)
    made = {"recipe": recipe, "engine": engine}
    return Entry(f"edgewright {recipe} on {title}", "edgewright", made, f"{recipe}_{title.replace(' ', '_')}")


#: Prompts are read by OpenVINO, and answers made by ONNX Runtime, over one cache.
PAIRED = ("llm=onnxruntime,prefill=openvino", "both engines")
OPENVINO = ("openvino", "openvino")


INT4 = ("int4", "--sym", "--ratio", "1.0", "--group-size-fallback", "adjust", "--group-size")

ENTRIES = (
    _edgewright("int4"),
    Entry(
        "edgewright int4 (original file)",
        "edgewright",
        {"recipe": "int4", "source": "../SmolLM2-135M-Instruct.Q4_1.gguf"},
        "int4_original",
        models=("smollm2",),
    ),
    Entry("edgewright int4, head int4", "edgewright", {"recipe": "recipes/int4-head.yaml"}, "int4_head"),
    _edgewright("int4", *OPENVINO),
    _edgewright("int4", *PAIRED),
    _edgewright("int8"),
    _edgewright("int8", *OPENVINO),
    _edgewright("int8", *PAIRED),
    _edgewright("float32"),
    _llama("Q4_0", "Q4_0"),
    _llama("Q4_0 flash off", "Q4_0", flash=False),
    _llama("Q4_K_M", "Q4_K_M"),
    _llama("Q8_0", "Q8_0"),
    Entry(
        "llama.cpp Q4_1 (original file)",
        "llama_cpp",
        {"copy": "../SmolLM2-135M-Instruct.Q4_1.gguf"},
        "q4_1_original",
        models=("smollm2",),
    ),
    _genai("int4 block 32", "int4", "int4"),
    _genai("int4 block 128", "int4", "int4_b128", block_size="128"),
    _genai("int4 k_quant_mixed", "int4", "int4_k_quant_mixed", algo_config="k_quant_mixed"),
    _genai("int8", "int8", "int8"),
    _openvino("int4 group 32", "int4_g32", *INT4, "32"),
    _openvino("int4 group 128", "int4_g128", *INT4, "128"),
    _openvino("int8", "int8", "int8"),
)


def select(models: list[str], names: list[str] | None) -> dict[str, list[Entry]]:
    """Return the entries of each model; `names` are names of entries or of peers, or parts of them; None means all.

    >>> [entry.name for entry in select(["smollm2"], ["q8", "float32", "edgewright int8"])["smollm2"]]
    ['edgewright int8', 'edgewright float32', 'llama.cpp Q8_0']
    """

    whole = {entry.name.lower() for entry in ENTRIES}

    def meant(name: str, entry: Entry) -> bool:
        mine = entry.name.lower()
        return mine == name if name in whole else name in mine or name == entry.peer

    def wanted(entry: Entry) -> bool:
        return names is None or any(meant(name.lower(), entry) for name in names)

    return {model: [entry for entry in ENTRIES if model in entry.models and wanted(entry)] for model in models}
