"""Putting mapped modules in the place of the embeddings of a model."""

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from urllib.parse import quote

from torch import nn

from loaderx import _engine
from loaderx.errors import ArgumentError, DtypeError, StoreExistsError, UnsupportedError

from ._arguments import flag, one_of
from ._replacement import Replacement, ReplaceReport
from ._weight import bag_weight_of, weight_of
from .bundle import remove_bundle
from .embedding import MappedEmbedding
from .embedding_bag import open_embedding_bag
from .export import export_embedding, export_embedding_bag

__all__ = ["ReplaceReport", "Replacement", "replace_embeddings"]

_TIED = ("skip", "input")

#: What file systems allow for the name of a directory.
_NAME_BYTES = 255


def replace_embeddings(
    model, directory, select=None, bag=None, *, embedding=None, tied="skip", overwrite=False, **options
):
    """Write the embeddings of a model to bundles, and put mapped modules in their places.

    Parameters
    ----------
    model : torch.nn.Module
        In evaluation mode. It is changed in place, and its code is not.
    directory : path_like
        Gets a bundle for each embedding, named as the module is in the model.
    select : callable, str or iterable of str, optional
        Which embeddings: ``select(name, module)`` returns whether, or patterns
        of names, in which ``*`` stands for anything, dots included. By default
        all.
    bag : dict or False, optional
        Options of the `MappedEmbeddingBag` for each ``nn.EmbeddingBag``, such
        as `strategy`; False leaves these alone.
    embedding : dict or False, optional
        The same for ``nn.Embedding``: options of `MappedEmbedding`.
    tied : {"skip", "input"}
        An embedding whose weight something else in the model has, too, an
        output layer as a rule, is skipped; or its look-ups are mapped, and the
        weight stays with the other, so that nothing is freed. Embeddings that
        share a weight among themselves are replaced together.
    overwrite : bool
        Replace bundles that are there, which keep their permissions.
    **options
        Of `export_embedding`: `codec`, `predictor`, `threads` and so on.

    Returns
    -------
    ReplaceReport
        What was replaced and freed, and what was skipped and why.

    Raises
    ------
    ArgumentError
        A pattern matches no embedding, or `model` is one itself.
    StoreExistsError
        A bundle is there, and `overwrite` is false, or what is there is no
        bundle, or has other things in it.

    Notes
    -----
    All or nothing: if one fails, the model is as it was, and the bundles that
    were not there before are removed again.

    Skipped are modules in training mode, subclasses, what the exporters refuse
    (``max_norm``, hooks, sparse or quantised or missing weights), weights on
    other devices than the CPU, and modules whose name no directory can have,
    or is that of another.

    Code of the model that uses the weight of an embedding, and not the module,
    raises an error with the reason when it runs: tying weights once more,
    resizing the vocabulary. Memory is freed when nobody else, such as an
    optimizer, refers to the weights.

    Examples
    --------
    >>> import tempfile, torch, ngram_store
    >>> model = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 2)).eval()
    >>> ids = torch.tensor([5, 99])
    >>> before = model(ids)
    >>> report = ngram_store.replace_embeddings(model, tempfile.mkdtemp())
    >>> report.bytes_freed, torch.equal(model(ids), before)
    (3200, True)
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, (nn.Embedding, nn.EmbeddingBag)):
        raise ArgumentError("the model is an embedding itself, with no place to put another; use the exporters")
    one_of("tied", tied, _TIED)
    overwrite = flag("overwrite", overwrite)
    _engine.path_arg(directory)
    kinds = {nn.Embedding: _mapping("embedding", embedding), nn.EmbeddingBag: _mapping("bag", bag)}
    names = _embeddings(model)
    reasons = _reasons(model, names, _selection(select, names), kinds, tied)
    folder = os.path.abspath(os.fsdecode(directory))
    with contextlib.ExitStack() as undo:
        made = _Bundles(folder, kinds, {"overwrite": overwrite, **options}, undo)
        mapped = {module: made.mapped(names[module][0], module) for module in names if module not in reasons}
        _put(model, mapped, undo)
        freed = _freed(model, mapped)
        entries = []
        for module, known in names.items():
            path = mapped[module].path if module in mapped else None
            kind = type(module).__name__
            entries.append(Replacement(tuple(known), kind, path, freed.get(module, 0), reasons.get(module)))
        report = ReplaceReport(tuple(entries))
        undo.pop_all()
    return report


def _mapping(name, given):
    if given is None or given is False:
        return {} if given is None else None
    if not isinstance(given, Mapping):
        raise DtypeError(f"{name} must be a dict of options, False or None, got {type(given).__name__}")
    return dict(given)


def _embeddings(model):
    """Return the names of each embedding."""
    names = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            names[module].append(name)
    return dict(names)


def _selection(select, names):
    """Return the embeddings that are asked for."""
    if select is None:
        return set(names)
    if callable(select):
        return {module for module, known in names.items() if any(select(name, module) for name in known)}
    try:
        patterns = [select] if isinstance(select, str) else list(select)
        found = {pattern: {m for m in names if any(fnmatchcase(n, pattern) for n in names[m])} for pattern in patterns}
    except TypeError:
        raise DtypeError(f"select must be a callable, a name or an iterable of names, got {select!r}") from None
    for pattern, matches in found.items():
        if not matches:
            known = [name for each in names.values() for name in each]
            raise ArgumentError(f"no embedding of the model is called {pattern!r}; there are {known}")
    return set().union(*found.values())


def _reasons(model, names, selected, kinds, tied):
    """Return why embeddings are left as they are."""
    reasons = {}
    for module in names:
        reason = _reason(module, kinds) if module in selected else "it is not selected"
        if reason is not None:
            reasons[module] = reason
    if tied == "skip":
        holders = _holders(model)
        qualified = [module for module in names if module not in reasons]
        for module in qualified:
            others = [name for owner, name in holders[_memory(module.weight)] if owner not in qualified]
            if others:
                reasons[module] = (
                    f"its weight is {', '.join(others)}, too, so that nothing would be freed; tied='input' maps the "
                    "look-ups alone"
                )
    taken = {}
    for module, known in names.items():
        if module in reasons:
            continue
        place = _place(known[0])
        if place is None:
            reasons[module] = f"a directory can't be called {known[0]!r}, as its bundle would be"
        elif place in taken:
            reasons[module] = "another embedding has the same name, and their bundles would lie at one place"
        else:
            taken[place] = module
    return reasons


def _place(name):
    """Return what the directory of a bundle is called; None if there can be no such directory."""
    try:
        place = quote(name, safe="")
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return None if place in ("", ".", "..") or len(place) > _NAME_BYTES else place


def _reason(module, kinds):
    kind = nn.EmbeddingBag if isinstance(module, nn.EmbeddingBag) else nn.Embedding
    if kinds[kind] is None:
        return f"{'bag' if kind is nn.EmbeddingBag else 'embedding'} is False"
    try:
        weight = bag_weight_of(module) if kind is nn.EmbeddingBag else weight_of(module, kind)
    except (ArgumentError, DtypeError, UnsupportedError) as error:
        return str(error)
    if type(module) is not kind:
        return f"it is a {type(module).__name__}, which may have more members than the nn.{kind.__name__} it is"
    if module.training:
        return "it is in training mode, and the rows of a table are constants; call model.eval() first"
    if weight.device.type != "cpu":
        return f"its weight is on {weight.device}, and a mapped table takes ids and gives rows on the CPU"
    return None


def _holders(model):
    """Return what holds each piece of memory: pairs of a module and the name of its parameter or buffer."""
    holders = defaultdict(list)
    for prefix, module in model.named_modules():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            place = _memory(tensor)
            if place is not None:
                holders[place].append((module, f"{prefix}.{key}" if prefix else key))
    return holders


def _memory(tensor):
    """Return where the memory of a tensor is, None if it has none of its own."""
    if tensor is None or tensor.is_meta or isinstance(tensor, nn.parameter.UninitializedTensorMixin):
        return None
    try:
        return _engine.tensor_address(tensor.untyped_storage()) or None
    except (NotImplementedError, RuntimeError):  # sparse, and subclasses that wrap others
        return None


class _Bundles:
    """Writes and opens the bundles of a model, and has what it did undone."""

    def __init__(self, folder, kinds, options, undo):
        self._folder, self._kinds, self._options, self._undo = folder, kinds, options, undo
        self._written, self._kept = {}, set()

    def mapped(self, name, module):
        """Return the module that takes the place of another."""
        is_bag = isinstance(module, nn.EmbeddingBag)
        weight = module.weight
        key = (is_bag, _engine.tensor_address(weight), weight.shape, weight.stride(), weight.dtype, module.padding_idx)
        path = None if is_bag else self._written.get(key)
        if path is None:
            path = self._written[key] = os.path.join(self._folder, _place(name))
            self._export(export_embedding_bag if is_bag else export_embedding, module, path)
        opened = open_embedding_bag if is_bag else MappedEmbedding
        mapped = opened(path, **self._kinds[nn.EmbeddingBag if is_bag else nn.Embedding])
        self._undo.callback(mapped.close)
        return mapped

    def _export(self, export, module, path):
        missing, parent = [], path
        while not os.path.lexists(parent):
            missing.append(parent)
            parent = os.path.dirname(parent)
        # Before there is anything to undo, as Ctrl-C may come at once when there is.
        for directory in reversed(missing[1:]):
            self._undo.callback(_remove_empty, directory)
        if missing:
            self._undo.callback(self._remove, path)
        try:
            export(module, path, **self._options)
        except StoreExistsError:  # someone else's
            self._kept.add(path)
            raise

    def _remove(self, path):
        if path not in self._kept:
            remove_bundle(path)


def _remove_empty(directory):
    with contextlib.suppress(OSError):  # someone else uses it by now
        os.rmdir(directory)


def _put(model, mapped, undo):
    """Put modules in the places of others, all of them."""
    for parent in list(model.modules()):
        for key, child in list(parent._modules.items()):
            if child in mapped:
                undo.callback(parent._modules.__setitem__, key, child)
                parent._modules[key] = mapped[child]


def _freed(model, mapped):
    """Return the bytes that each replaced module freed."""
    held, freed = set(_holders(model)), {}
    for module in mapped:
        place = _memory(module.weight)
        if place not in held:
            freed[module] = module.weight.untyped_storage().nbytes()
            held.add(place)
    return freed
