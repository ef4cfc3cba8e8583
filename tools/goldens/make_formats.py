"""Write tests/goldens/formats/: codes, scales and values of small matrices, as other tools quantize them.

    python tools/goldens/make_formats.py [NAME ...]        # 20 s, no GPU; the environment of requirements_quant.txt

inputs.safetensors holds the matrices; the other files hold arrays named MATRIX.FORMAT.WHAT. Metadata: `versions`, and
`rules`, a JSON object from FORMAT to the formula of the tool; NumPy transcriptions of most are checked while writing.
"""

import sys
from collections.abc import Callable

import numpy as np
import torch
from format_common import OUT, write
from format_floats import codes, fp8, mx, nvfp4
from format_integers import integers
from format_matrices import matrices
from format_onnx import activations, onnx_qdq


def inputs() -> None:
    """Write the matrices that the other files quantize."""
    write("inputs", {k: v.astype(np.float16) if k == "block" else v for k, v in matrices().items()})


def main() -> int:
    """Write all files, or those named on the command line."""
    torch.set_num_threads(1)
    makers: list[Callable[[], None]] = [inputs, codes, nvfp4, mx, fp8, integers, onnx_qdq, activations]
    OUT.mkdir(parents=True, exist_ok=True)
    for maker in makers:
        if not sys.argv[1:] or maker.__name__ in sys.argv[1:]:
            maker()
    return 0


if __name__ == "__main__":
    sys.exit(main())
