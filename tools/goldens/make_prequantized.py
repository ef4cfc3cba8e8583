"""Write tests/goldens/prequantized/<case>/: tiny checkpoints made by the original quantization tools.

    HF_HUB_OFFLINE=1 python tools/goldens/make_prequantized.py --tool ct|ctold|gptq|modelopt|fp8|index [CASE ...]

Each folder holds config.json, model.safetensors (for ModelOpt hf_quant_config.json too) as the tool wrote them,
expected.safetensors and case.json (see README.md). The tools need several environments: see
requirements-prequantized.txt. Without a case all cases of the tool are made; index.json is written again.
"""

import argparse
import importlib
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from prequantized_common import write_index

SEED = 41


def main() -> None:
    """Make the cases of one tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", choices=("ct", "ctold", "gptq", "modelopt", "fp8", "index"), required=True)
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.tool != "index":
        module = importlib.import_module(f"prequantized_{arguments.tool}")
        for number, case in enumerate(module.CASES):
            if not arguments.cases or case in arguments.cases:
                torch.manual_seed(SEED + number)
                module.make(case, SEED + number)
    write_index()


if __name__ == "__main__":
    main()
