"""Mapped arrays are those of the file, and nobody changes it through them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors

from umpteen.encoders.folder import map_arrays

ARRAYS = {
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
    "float": np.linspace(0, 1, 5, dtype=np.float32),
    "none": np.empty((0, 4), np.float32),
    "long": np.array([[2**40], [-1]]),
    "int": np.array(7, np.int32),
}


def test_arrays_are_those_that_were_written_and_torch_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    save_file(ARRAYS, path, metadata={"format": "np"})
    found, before = map_arrays(path), path.read_bytes()
    assert found.keys() == ARRAYS.keys()
    for name, expected in load_file(path).items():
        np.testing.assert_array_equal(found[name], expected)
        assert (found[name].dtype, found[name].shape) == (expected.dtype, expected.shape)
        torch.from_numpy(found[name])  # it warns of arrays that cannot be written
    found["float"][:] = 9
    assert path.read_bytes() == before


def test_a_file_that_is_not_whole_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    save_file(ARRAYS, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="buffer"):
        map_arrays(path)
    save_tensors({"brain": torch.ones(2, dtype=torch.bfloat16)}, path)
    with pytest.raises(ValueError, match="brain is of the kind BF16"):
        map_arrays(path)
