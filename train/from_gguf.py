"""From a GGUF language model (llama.cpp's file format) to a folder that transformers loads and trains."""

from pathlib import Path
from typing import Any


def convert_gguf(gguf: Path, out: Path) -> str:
    """Writes safetensors in float32, configs and tokenizer (chat template included) into `out`.

    The weights are the dequantised ones, bit for bit; what rounding took is not brought back. Returns one line that
    says what was done. Raises ImportError when the gguf package is not installed.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The loaded model counts as quantised and refuses to be saved; a fresh one with its weights does not.
    settings = loaded.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path", "_name_or_path"):
        settings.pop(key, None)
    config = type(loaded.config).from_dict(settings)
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    ids = {key: getattr(config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(out)
    load_gguf_tokenizer(gguf, config.max_position_embeddings).save_pretrained(out)
    return f"{gguf.name} dequantised to float32"


def load_gguf_tokenizer(gguf: Path, max_length: int) -> Any:
    """The tokenizer of a GGUF file, with the step that the conversion of transformers leaves out.

    It ignores the pre-tokenizer the file names. SmolLM's cuts off every digit before anything else, so that white
    space before a number joins up ("\\n\\n" in "\\n\\n1." is one token); without that step the model is fed tokens
    it was not trained on.
    """
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.model_max_length = max_length
    for key in ("is_local", "local_files_only"):  # where it was loaded from, not what it is
        tokenizer.init_kwargs.pop(key, None)
    return tokenizer
