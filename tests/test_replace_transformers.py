"""Replacing the embeddings of language models whose code is somebody else's."""

import pytest
import torch

from ngram_store import MappedEmbedding, replace_embeddings
from tests.mapped import assert_same_bits


@pytest.fixture(params=["Llama", "Qwen2", "Qwen3"])
def language_model(request):
    """Return a maker of small language models of one family, whose weights are random."""
    import transformers

    def make(tied):
        torch.manual_seed(4)
        config = getattr(transformers, f"{request.param}Config")(
            vocab_size=200,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=tied,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=None,
        )
        return getattr(transformers, f"{request.param}ForCausalLM")(config).eval()

    return make


@pytest.mark.parametrize("tied", [False, True])
def test_a_language_model_of_transformers_needs_no_change(language_model, tmp_path, tied):
    model = language_model(tied)
    ids = torch.randint(200, (2, 7))
    with torch.no_grad():
        logits = model(ids).logits
    words = model.generate(ids, max_new_tokens=12, do_sample=False)
    if tied:
        (entry,) = replace_embeddings(model, tmp_path).skipped
        assert entry.reason.startswith("its weight is lm_head.weight, too")
        report = replace_embeddings(model, tmp_path, tied="input")
    else:
        report = replace_embeddings(model, tmp_path)
    assert [(e.name, e.bytes_freed) for e in report.modules] == [("model.embed_tokens", 0 if tied else 200 * 32 * 4)]
    assert isinstance(model.get_input_embeddings(), MappedEmbedding)
    with torch.no_grad():
        assert_same_bits(model(ids).logits, logits)
    assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False), words)
