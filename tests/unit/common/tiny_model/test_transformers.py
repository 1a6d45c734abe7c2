"""The folders as transformers reads them."""

import pytest
import torch
import transformers

from services.common.tiny_model.making import make_tiny_model


@pytest.mark.parametrize(("preset", "num_parameters"), [("tiny-task", 168832), ("tiny-byte", 201600)])
def test_transformers_loads_the_model_and_misses_nothing(tmp_path, preset, num_parameters):
    make_tiny_model(preset, seed=0, folder=tmp_path)
    transformers.logging.set_verbosity_error()
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(model).__name__ == "Glm4MoeForCausalLM"
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    assert not loading["missing_keys"]
    assert all(name.startswith("model.layers.2.") for name in loading["unexpected_keys"])
    with torch.no_grad():
        logits = model(torch.tensor([[2, 3, 4, 14, 17, 20]])).logits
    assert logits.isfinite().all()
    assert logits.std() > 0.1


def test_transformers_loads_the_tokenizer(tmp_path):
    make_tiny_model("tiny-task", seed=0, folder=tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "[gMASK]<sop><|user|>47+85<|assistant|>"
    assert tokenizer(text)["input_ids"] == [2, 3, 4, 14, 17, 20, 18, 15, 5]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1)
