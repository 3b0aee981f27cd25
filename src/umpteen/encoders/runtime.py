"""A transformer's layers outside torch: exported as an ONNX graph in float32, computed by onnxruntime on the CPU.

A graph may come from a stranger: it holds its own weights and names no other file, whichever onnxruntime reads it.
"""

import hashlib
import logging
import re
import warnings
from collections.abc import Callable
from copy import copy, deepcopy
from importlib import import_module
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from umpteen.encoders.backbone import ATTENTION, quiet, trial
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadInput, DamagedModel

_OPSET = 23  # the first in which attention is one operator
# Weights that lie elsewhere have this key, after its length: 8, or 8 written longer, which then ends in 0.
_ELSEWHERE = re.compile(rb"[\x08\x00]location")

TRIAL = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
for shape in ((1, 1), (1, 9), (3, 5)):
    ones = numpy.ones(shape, numpy.int64)
    (states,) = session.run(None, {"ids": ones, "mask": ones})
    assert states.shape[:2] == shape and numpy.isfinite(states).all(), "it computes no numbers"
"""


class OnnxGraph:
    """The graph of a file; one session for each number of threads that torch has where it is called."""

    def __init__(self, file: Path, size: int) -> None:
        self.file, self._library = file, import_module("onnxruntime")
        self.fingerprint = hashlib.sha256(self._content()).hexdigest()
        self._sessions: dict[int, Any] = {}
        self._opening = Lock()
        one = torch.ones(1, 1, dtype=torch.int64)
        try:
            if self(one, one).shape != (1, 1, size):
                raise ValueError("its states have another shape than the encoder's")
        except Exception as error:  # those of onnxruntime have no base but this
            raise DamagedModel(f"{file}: onnxruntime cannot compute it ({error}); export the model again") from error

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        threads = torch.get_num_threads()
        with self._opening:
            if threads not in self._sessions:
                self._sessions[threads] = self._opened(threads)
        (states,) = self._sessions[threads].run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
        return torch.from_numpy(states)

    def _opened(self, threads: int) -> Any:
        options = self._library.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.enable_mem_pattern = False  # it would keep one for every shape
        options.log_severity_level = 3  # errors
        options.add_session_config_entry("session.load_model_format", "ONNX")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the search is to have the cores
        try:
            return self._library.InferenceSession(self._content(), options, providers=["CPUExecutionProvider"])
        except FileNotFoundError:  # another export has taken the place of this one meanwhile
            return next(iter(self._sessions.values()))

    def _content(self) -> bytes:
        content = self.file.read_bytes()
        if b"location" in content and _ELSEWHERE.search(content):  # the first alone is found, or not, far sooner
            raise DamagedModel(f"{self.file}: its weights are said to lie in another file; do not use this model")
        return content


def on_graphs(
    tower: Encoder, folder: Path, first: Callable[[TransformerEncoder, Path], None] = lambda encoder, file: None
) -> Encoder:
    """The tower with its transformers computed by the graphs in a folder, for each of which `first` is called."""
    numbers = count()

    def change(encoder: TransformerEncoder) -> TransformerEncoder:
        file = folder / f"transformer-{next(numbers)}.onnx"
        first(encoder, file)
        twin = copy(encoder)
        twin.runtime = OnnxGraph(file, encoder.model.config.hidden_size)
        return twin

    changed = tower.with_transformers(change)
    if next(numbers) == 0:
        raise BadInput(f"the query tower has no transformer to export ({tower.describe()}); it is quick as it is")
    return changed


def export(tower: Encoder, folder: Path) -> Encoder:
    """Writes a graph for each transformer of a tower, and tries it; the tower as these compute it."""
    for name in ("onnxruntime", "onnxscript"):
        import_module(name)
    return on_graphs(tower, folder, _write)


class _Layers(nn.Module):
    """Token ids and mask in, the last states out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        if model.config._attn_implementation == ATTENTION:
            model.set_attn_implementation("sdpa")
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


def _write(encoder: TransformerEncoder, file: Path) -> None:
    model: Any = deepcopy(encoder.model)
    layers = _Layers(model.cpu().float()).eval()
    ids, mask = torch.ones(2, 8, dtype=torch.int64), (torch.arange(8) < torch.tensor([[8], [5]])).long()
    how: dict[str, Any] = {"input_names": ("ids", "mask"), "output_names": ("states",), "opset_version": _OPSET}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells what else is not installed
    try:
        with quiet(), warnings.catch_warnings(action="ignore"):
            import onnx_ir
            from onnx_ir.passes.common import ClearMetadataAndDocStringPass

            how["dynamic_shapes"] = (dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC),) * 2
            program = torch.onnx.export(layers, (ids, mask), dynamo=True, verbose=False, **how)
            assert program is not None
            ClearMetadataAndDocStringPass()(program.model)  # it says where the code lay on the disk
            onnx_ir.save(program.model, file)
    except Exception as error:  # which models can be exported is torch's to say, by errors of any kind
        reason, kind = str(error).partition("\n")[0], encoder.model.config.model_type
        raise BadInput(f"torch cannot export this {kind} to ONNX: {reason}; nothing was changed") from error
    if outcome := trial(TRIAL, str(file)):  # a processor may advertise what kills the process that uses it
        raise BadInput(f"onnxruntime cannot compute the graph here: {outcome}; nothing was changed")
