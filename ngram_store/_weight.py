"""The weights that a table can stand in for."""

import torch
from torch import nn

from loaderx.errors import ArgumentError, DtypeError, UnsupportedError

from ._arguments import instead
from ._kinds import MODES
from .bundle import DTYPES

__all__ = ["bag_weight_of", "dtype_name", "weight_of"]


def weight_of(module, kind):
    """Return the weight of a module whose forward is a look-up in it, and nothing else."""
    what = f"{type(module).__module__}.{type(module).__qualname__}"
    if not isinstance(module, kind):
        hint = instead(module, kind)
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            hint = f"; export_embedding{'_bag' if isinstance(module, nn.EmbeddingBag) else ''} exports one"
        raise DtypeError(f"expected a torch.nn.{kind.__name__}, got {what}{hint}")
    if type(module).forward is not kind.forward or "forward" in vars(module):
        raise UnsupportedError(f"{what} has a forward of its own, which a table does not reproduce")
    if module._forward_hooks or module._forward_pre_hooks:
        raise UnsupportedError(f"{what} has forward hooks, which a table does not call; remove them first")
    if module.max_norm is not None:
        raise UnsupportedError(
            f"max_norm={module.max_norm} rescales rows at each look-up; export a module whose rows have been rescaled"
        )
    weight = module.weight
    if isinstance(weight, nn.parameter.UninitializedTensorMixin):
        raise DtypeError("the weight is not initialised yet")
    if type(weight) not in (torch.Tensor, nn.Parameter):
        raise DtypeError(f"the weight is a {type(weight).__name__}; give it the dense rows of a torch.Tensor first")
    if weight.is_meta:
        raise DtypeError("the weight is on the meta device and has no values; load it first")
    if weight.is_quantized or weight.layout != torch.strided:
        raise DtypeError(
            f"the weight is {weight.dtype}, {weight.layout}; rows of dense, unquantised tensors are exported"
        )
    if dtype_name(weight) not in DTYPES:
        raise DtypeError(f"the weight is of {weight.dtype}, a table holds one of {sorted(DTYPES)}")
    if weight.ndim != 2 or weight.shape[1] < 1:
        raise ArgumentError(
            f"the weight has the shape {tuple(weight.shape)}, and must have rows of at least one element"
        )
    return weight.detach()


def bag_weight_of(module):
    """Return the weight of an ``nn.EmbeddingBag`` in a mode that torch can call."""
    weight = weight_of(module, nn.EmbeddingBag)
    if module.mode not in MODES:
        raise ArgumentError(f"the module has the mode {module.mode!r}, which torch does not know")
    if module.mode == "max" and (module.scale_grad_by_freq or module.sparse):
        raise UnsupportedError(
            "torch has no mode 'max' with scale_grad_by_freq or sparse, so the module can't be called"
        )
    return weight


def dtype_name(weight):
    return str(weight.dtype).removeprefix("torch.")
