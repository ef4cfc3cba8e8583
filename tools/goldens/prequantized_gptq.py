"""Checkpoints in the layouts of GPTQ (v1, v2, desc_act) and AWQ (gemm), packed and dequantized by GPTQModel."""

import dataclasses
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import gptqmodel
import torch
import transformers
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
from gptqmodel.quantization import QuantizeConfig
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from prequantized_common import OUT, WIDE, Golden, Shape, build_model, float_logits, token_ids, write_golden
from safetensors.torch import save_file

VERSIONS = {
    "gptqmodel": gptqmodel.__version__,
    "autoawq": "0.2.9 (its unpacking, as a check)",
    "transformers": transformers.__version__,
    "torch": torch.__version__,
}
SMALL = Shape()


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to pack."""

    about: str
    method: str = "gptq"
    bits: int = 4
    group: int = 32
    sym: bool = False
    desc_act: bool = False
    version: int = 1
    shape: Shape = SMALL
    left_out: tuple[str, ...] = ()
    positive: bool = False


CASES = {
    "gptq-v1-sym": Case("4 bits, group 32, symmetric: stored zero points are 7, meaning 8", sym=True),
    "gptq-v1-asym": Case("4 bits, group 32, zero points stored minus one"),
    "gptq-v1-asym-borrow": Case(
        "as gptq-v1-asym with groups whose zero point is 0: one is subtracted from whole words, with borrows",
        positive=True,
    ),
    "gptq-v2-asym": Case("4 bits, group 32, zero points stored as they are (some 0 and 15)", version=2, positive=True),
    "gptq-v1-desc-act": Case("4 bits, group 32, symmetric, g_idx not sorted", sym=True, desc_act=True),
    "gptq-v2-desc-act-asym": Case("4 bits, group 32, zero points, g_idx not sorted", desc_act=True, version=2),
    "gptq-v1-g128": Case("4 bits, group 128", sym=True, group=128, shape=WIDE),
    "gptq-v1-8bit-channel": Case("8 bits, group -1 (one group), symmetric", bits=8, group=-1, sym=True),
    "gptq-v1-3bit": Case("3 bits, group 32: three words hold 32 codes", bits=3),
    "awq-g32": Case("gemm, 4 bits, group 32, zero points", method="awq"),
    "awq-g128": Case(
        "gemm, 4 bits, group 128, one layer in modules_to_not_convert",
        method="awq",
        group=128,
        shape=WIDE,
        left_out=("down_proj",),
    ),
}


def ranges(weight: torch.Tensor, case: Case, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales (representable in float16) and zero points, both float32 [out, groups]."""
    top = 2**case.bits - 1
    scales, zeros = [], []
    for index in range(int(groups.max()) + 1):
        part = weight[:, groups == index]
        if case.sym:
            scales.append(2 * part.abs().amax(1) / top)
            zeros.append(torch.full((weight.shape[0],), float(2 ** (case.bits - 1))))
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scales.append((high - low) / top)
            zeros.append((-low / scales[-1]).round().clamp(0, top))
    return torch.stack(scales, 1).half().float(), torch.stack(zeros, 1)


def group_index(columns: int, case: Case, generator: torch.Generator) -> torch.Tensor:
    """Return int32 [in]: the group of every in-feature; shuffled as activation order leaves it."""
    size = columns if case.group == -1 else case.group
    index = torch.arange(columns, dtype=torch.int32) // size
    return index[torch.randperm(columns, generator=generator)] if case.desc_act else index


Packed = tuple[dict[str, torch.Tensor], torch.Tensor]


def pack_gptq(
    linear: Any, case: Case, groups: torch.Tensor, config: Any
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the tensors of one layer and its float32 weight [out, in]."""
    rows, columns = linear.weight.shape
    module = TorchLinear(
        bits=case.bits,
        group_size=columns if case.group == -1 else case.group,
        sym=case.sym,
        desc_act=case.desc_act,
        in_features=columns,
        out_features=rows,
    )
    scales, zeros = ranges(linear.weight.data, case, groups)
    module.pack_original(linear, scales, zeros, groups)
    module.scales = module.scales.float()
    module.eval()
    weight = TorchLinear.dequantize_weight(module).float().T.contiguous()
    if case.version == 1:
        convert_gptq_v2_to_v1_format_module(module, config)
    stored = {"qweight": module.qweight, "qzeros": module.qzeros, "scales": module.scales.half(), "g_idx": module.g_idx}
    return stored, weight


def autoawq_packing() -> Any:
    """Return AutoAWQ's packing_utils alone; the package itself asks for an old transformers."""
    found = importlib.util.find_spec("awq")
    path = Path(found.submodule_search_locations[0]) / "utils" / "packing_utils.py"
    spec = importlib.util.spec_from_file_location("autoawq_packing_utils", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pack_awq(linear: Any, case: Case, groups: torch.Tensor) -> Packed:
    """Return the tensors of one layer and its float32 weight [out, in], the same by GPTQModel and AutoAWQ."""
    rows, columns = linear.weight.shape
    module = AwqTorchLinear(
        bits=4,
        group_size=case.group,
        sym=False,
        desc_act=False,
        in_features=columns,
        out_features=rows,
        register_buffers=True,
    )
    scales, zeros = ranges(linear.weight.data, case, groups)
    top = scales * (15 - zeros)
    low, high = (-scales * zeros).repeat_interleave(case.group, 1), top.repeat_interleave(case.group, 1)
    linear.weight.data = torch.minimum(torch.maximum(linear.weight.data, low), high)  # pack doesn't clamp
    module.pack(linear, scales.half(), zeros.half())
    stored = {"qweight": module.qweight, "qzeros": module.qzeros, "scales": module.scales}
    weights = [
        dequantize(stored["qweight"], stored["qzeros"], stored["scales"].float(), 4, case.group).T.contiguous()
        for dequantize in (dequantize_gemm, autoawq_packing().dequantize_gemm)
    ]
    if not torch.equal(*weights):
        raise SystemExit("GPTQModel and AutoAWQ dequantize differently")
    return stored, weights[0]


def quantization_config(case: Case) -> dict[str, Any]:
    """Return the config the tools write."""
    if case.method == "awq":
        return {
            "bits": 4,
            "group_size": case.group,
            "modules_to_not_convert": list(case.left_out) or None,
            "quant_method": "awq",
            "version": "gemm",
            "zero_point": True,
        }
    return {
        "bits": case.bits,
        "checkpoint_format": "gptq" if case.version == 1 else "gptq_v2",
        "desc_act": case.desc_act,
        "group_size": case.group,
        "lm_head": False,
        "pack_dtype": "int32",
        "quant_method": "gptq",
        "sym": case.sym,
        "true_sequential": True,
    }


def make(name: str, seed: int) -> None:
    """Make one case."""
    case = CASES[name]
    model = build_model(case.shape, seed)
    generator = torch.Generator().manual_seed(seed)
    config = QuantizeConfig(bits=case.bits, group_size=case.group, sym=case.sym, desc_act=case.desc_act)
    tensors = {k: v.half() for k, v in model.state_dict().items()}
    plain = dict(tensors)
    weights: dict[str, torch.Tensor] = {}
    for key, linear in model.named_modules():
        if not isinstance(linear, torch.nn.Linear) or key == "lm_head" or key.endswith(case.left_out or ("-",)):
            continue
        groups = group_index(linear.in_features, case, generator)
        if case.positive:  # every third out-feature has one sign, so its zero points are 0 (or 15)
            linear.weight.data[::3] = linear.weight.data[::3].abs()
            linear.weight.data[1::6] = -linear.weight.data[1::6].abs()
        if case.method == "awq":
            stored, weights[key] = pack_awq(linear, case, groups)
        else:
            stored, weights[key] = pack_gptq(linear, case, groups, config)
        del tensors[f"{key}.weight"]
        tensors |= {f"{key}.{suffix}": value.clone() for suffix, value in stored.items()}
        plain[f"{key}.weight"] = weights[key]
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    asked = model.config.to_dict() | {"quantization_config": quantization_config(case), "dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(asked, indent=2) + "\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    ids = token_ids(seed, case.shape.vocab)
    write_golden(
        Golden(
            case=name,
            tool="gptqmodel",
            versions=VERSIONS,
            about=case.about,
            formula="(code - zero_point) * scale of the in-feature's group",
            seed=seed,
            shape=case.shape,
            weights=weights,
            ids=ids,
            logits=float_logits(case.shape, seed, plain, ids),
            notes=["codes by rounding to nearest; packed, converted and dequantized by the tool's modules"],
        )
    )
