"""Read and check safetensors weights against the JSON description in the same folder."""

import hashlib
from pathlib import Path

from safetensors.torch import load
from torch import Tensor

from policies.errors import BundleError


def require_fit(
    weights: dict[str, Tensor], network: dict[str, Tensor], file: Path, what: str = "policy", where: str = "bundle"
) -> None:
    """Raise BundleError, naming the first difference, if `weights` and `network` differ in names, shapes or types."""
    found, wanted = ({k: (str(tuple(v.shape)), str(v.dtype)) for k, v in s.items()} for s in (weights, network))
    different = sorted(k for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k))
    if different:
        name = different[0]
        shapes, types = zip(*(s.get(name, ("absent", "")) for s in (found, wanted)), strict=True)
        actual, expected = shapes if shapes[0] != shapes[1] else types
        more = f", and {len(different) - 1} more differ" if len(different) > 1 else ""
        raise BundleError(
            f"{file} holds the weights of another {what} than {what}.json says: {name} is {actual} in it, not "
            f"{expected}{more}; copy the {where} again"
        )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_weights(file: Path, sums: dict[str, str], what: str = "policy", where: str = "bundle") -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; `sums` holds the sha256 of each file name from `{what}.json`."""
    try:
        data = file.read_bytes()
        if sha256(data) != sums.get(file.name):
            raise BundleError(
                f"{file} is not what was saved: its sha256 is another than in {what}.json; copy the whole {where} again"
            )
        return load(data)
    except BundleError:
        raise
    except FileNotFoundError:
        raise BundleError(f"{file} is missing; copy the whole {where} folder") from None
    except Exception as error:  # safetensors has its own error type for truncated or foreign files
        raise BundleError(f"{file} is damaged ({error}); copy the {where} again") from None
