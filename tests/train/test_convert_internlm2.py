"""InternLM2 in the Llama layout computes the same: against a forward pass written here from the architecture."""

import json

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep.errors import UserError
from train.convert_internlm2 import convert_adapter, convert_base
from train.internlm2_chat import chat_system

SHAPES = {
    "multi-head": {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False},
    "grouped-query": {"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False, "bias": True},
    "tied": {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
}
HIDDEN, INNER, LAYERS, VOCABULARY = 32, 48, 2, 300
CHATML = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
TARGETS = {"wqkv": "attention.wqkv", "wo": "attention.wo", "w1": "feed_forward.w1", "w2": "feed_forward.w2"}


def config_of(shape):
    return {
        "model_type": "internlm2",
        "architectures": ["InternLM2ForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM"},
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 1_000_000,
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "torch_dtype": "float32",
        "bias": False,
        **SHAPES[shape],
    }


def weights_of(config, seed=0):
    draw = torch.Generator().manual_seed(seed)

    def matrix(*size):
        return torch.randn(*size, generator=draw) * 0.2

    size = HIDDEN // config["num_attention_heads"]
    rows = (config["num_attention_heads"] + 2 * config["num_key_value_heads"]) * size
    found = {"model.tok_embeddings.weight": matrix(VOCABULARY, HIDDEN), "model.norm.weight": 1 + matrix(HIDDEN)}
    if not config["tie_word_embeddings"]:
        found["output.weight"] = matrix(VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        found |= {
            f"{at}attention.wqkv.weight": matrix(rows, HIDDEN),
            f"{at}attention.wo.weight": matrix(HIDDEN, HIDDEN),
            f"{at}feed_forward.w1.weight": matrix(INNER, HIDDEN),
            f"{at}feed_forward.w3.weight": matrix(INNER, HIDDEN),
            f"{at}feed_forward.w2.weight": matrix(HIDDEN, INNER),
            f"{at}attention_norm.weight": 1 + matrix(HIDDEN),
            f"{at}ffn_norm.weight": 1 + matrix(HIDDEN),
        }
        if config["bias"]:
            found |= {f"{at}attention.wqkv.bias": matrix(rows), f"{at}attention.wo.bias": matrix(HIDDEN)}
    return found


def reference_logits(config, weights, ids):
    """InternLM2 as it is defined: grouped queries read off `wqkv` group by group, one head after the other."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size, group = HIDDEN // heads, heads // kv_heads

    def norm(x, weight):
        return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + config["rms_norm_eps"]) * weight

    def linear(x, name):
        return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def turn(x):  # [length, size]
        rates = config["rope_theta"] ** (-torch.arange(0, size, 2).double() / size)
        angles = torch.arange(len(x)).double()[:, None] * rates
        cos, sin = (f(torch.cat([angles, angles], 1)).float() for f in (torch.cos, torch.sin))
        return x * cos + torch.cat([-x[:, size // 2 :], x[:, : size // 2]], 1) * sin

    x = weights["model.tok_embeddings.weight"][ids]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        fused = linear(norm(x, weights[f"{at}attention_norm.weight"]), f"{at}attention.wqkv")
        outputs = [None] * heads
        for g in range(kv_heads):
            block = fused[:, g * (group + 2) * size : (g + 1) * (group + 2) * size].split(size, dim=1)
            key, value = turn(block[group]), block[group + 1]
            for q in range(group):
                scores = turn(block[q]) @ key.T / size**0.5
                hidden = torch.full_like(scores, float("-inf")).triu(1)
                outputs[g * group + q] = (scores + hidden).softmax(-1) @ value
        x = x + linear(torch.cat(outputs, 1), f"{at}attention.wo")
        y = norm(x, weights[f"{at}ffn_norm.weight"])
        gated = functional.silu(linear(y, f"{at}feed_forward.w1")) * linear(y, f"{at}feed_forward.w3")
        x = x + linear(gated, f"{at}feed_forward.w2")
    head = weights.get("output.weight", weights["model.tok_embeddings.weight"])
    return norm(x, weights["model.norm.weight"]) @ head.T


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    """A small SentencePiece model of InternLM2's kind: BPE, byte fallback, no space put before a text."""
    folder = tmp_path_factory.mktemp("spm")
    lines = ["hello, how are you feeling today?", "I can not sleep, work is too much", "我最近睡不好，工作压力很大"] * 5
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=VOCABULARY + 24,
        model_type="bpe",
        byte_fallback=True,
        add_dummy_prefix=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return folder / "tokenizer.model"


def write_base(folder, shape, spm, kind="safetensors", **changes):
    config = {**config_of(shape), **changes}
    weights = weights_of(config)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.model").write_bytes(spm.read_bytes())
    size = sentencepiece.SentencePieceProcessor(str(spm)).vocab_size()
    added = {
        str(size): {"content": "<|im_start|>", "special": True},
        str(size + 1): {"content": "<|im_end|>", "special": True},
    }
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHATML, "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if kind == "safetensors":
        save_file(weights, folder / "model.safetensors")
    else:
        names = list(weights)
        files = {"a.bin": names[::2], "b.bin": names[1::2]}
        for file, some in files.items():
            torch.save({name: weights[name] for name in some}, folder / file)
        found = {"weight_map": {name: file for file, some in files.items() for name in some}}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(found), encoding="utf-8")
    return folder, config, weights


def write_adapter(folder, config, targets=("wqkv",), rank=3, seed=5):
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(LAYERS):
        for target in targets:
            weight = weights_of(config)[f"model.layers.{layer}.{TARGETS[target]}.weight"]
            at = f"base_model.model.model.layers.{layer}.{TARGETS[target]}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(rank, weight.shape[1], generator=draw)
            tensors[f"{at}.lora_B.weight"] = torch.randn(weight.shape[0], rank, generator=draw)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return tensors


def adapted(weights, tensors):
    """The weights with the adapter added: W + 2 B A."""
    changed = dict(weights)
    for name in tensors:
        if ".lora_A." in name:
            module = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
            changed[module] = weights[module] + 2 * tensors[name.replace("lora_A", "lora_B")] @ tensors[name]
    return changed


IDS = torch.tensor([5, 17, 3, 250, 99, 1, 42, 42, 8])


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_converted_base_computes_what_internlm2_computes(shape, kind, spm, tmp_path):
    base, config, weights = write_base(tmp_path / "base", shape, spm, kind)
    convert_base(base, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.model_type == "llama"
    with torch.no_grad():
        logits = model(IDS[None]).logits[0]
    torch.testing.assert_close(logits, reference_logits(config, weights, IDS), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("targets", [("wqkv",), ("wqkv", "wo", "w1", "w2")])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_converted_adapter_adds_what_the_adapter_adds(shape, targets, spm, tmp_path):
    from peft import PeftModel

    base, config, weights = write_base(tmp_path / "base", shape, spm)
    tensors = write_adapter(tmp_path / "adapter", config, targets)
    convert_base(base, tmp_path / "out")
    convert_adapter(tmp_path / "adapter", base, tmp_path / "new")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "out"), tmp_path / "new").eval()
    with torch.no_grad():
        logits = model(IDS[None]).logits[0]
    expected = reference_logits(config, adapted(weights, tensors), IDS)
    torch.testing.assert_close(logits, expected, atol=5e-4, rtol=1e-3)
    assert not torch.allclose(expected, reference_logits(config, weights, IDS), atol=1e-2)


def test_every_number_is_copied_and_large_models_come_in_shards(spm, tmp_path, monkeypatch):
    base, _, weights = write_base(tmp_path / "base", "grouped-query", spm, "bin")
    monkeypatch.setattr("train.convert_internlm2.SHARD_BYTES", 1)
    convert_base(base, tmp_path / "out")
    files = sorted((tmp_path / "out").glob("model-*.safetensors"))
    assert len(files) == 2
    found = [number for file in files for tensor in load_file(file).values() for number in tensor.flatten().tolist()]
    assert sorted(found) == sorted(number for tensor in weights.values() for number in tensor.flatten().tolist())
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


TEXTS = ["hello, how are you?", "我最近睡不好", " two  spaces ", "emoji 😀 and ümlaut", "line\nbreak\ttab", "", "a"]


def test_the_tokenizer_cuts_as_the_sentencepiece_model_does(spm, tmp_path):
    base, _, _ = write_base(tmp_path / "base", "tied", spm)
    convert_base(base, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    reference = sentencepiece.SentencePieceProcessor(str(spm))
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids == reference.encode(text), text
        assert tokenizer.decode(ids) == text
    size = reference.vocab_size()
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert (ids[0], ids.count(size), ids.count(size + 1)) == (size, 1, 1)
    assert tokenizer.eos_token == "</s>"


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda base: (base / "config.json").write_text('{"model_type": "llama"}'), "model_type is 'llama'"),
        (lambda base: (base / "config.json").unlink(), "holds no config.json"),
        (lambda base: (base / "model.safetensors").unlink(), "holds no weights"),
        (lambda base: (base / "model.safetensors").write_bytes(b"cut"), "cannot be read"),
        (lambda base: (base / "tokenizer.model").unlink(), "neither tokenizer.json nor tokenizer.model"),
        (
            lambda base: save_file(
                {k: v for k, v in load_file(base / "model.safetensors").items() if "layers.1" not in k},
                base / "model.safetensors",
            ),
            "weights are missing",
        ),
    ],
)
def test_what_is_no_internlm2_is_one_line(spoil, told, spm, tmp_path):
    base, _, _ = write_base(tmp_path / "base", "tied", spm)
    spoil(base)
    with pytest.raises(UserError, match=told):
        convert_base(base, tmp_path / "out")


def test_faulty_settings_and_adapters_of_another_base_are_one_line(spm, tmp_path):
    base, config, _ = write_base(tmp_path / "base", "tied", spm)
    with pytest.raises(UserError, match="type 'yarn'"):
        convert_base(write_base(tmp_path / "yarn", "tied", spm, rope_scaling={"type": "yarn"})[0], tmp_path / "out")
    write_adapter(tmp_path / "adapter", {**config, "num_key_value_heads": 4})
    with pytest.raises(UserError, match="it is of another base"):
        convert_adapter(tmp_path / "adapter", base, tmp_path / "new")
    with pytest.raises(UserError, match=r"holds no adapter_config\.json"):
        convert_adapter(base, base, tmp_path / "new")
    with pytest.raises(UserError, match="exists already"):
        convert_base(base, base)


def test_the_command(spm, tmp_path):
    from typer.testing import CliRunner

    from esckit import app

    base, config, _ = write_base(tmp_path / "base", "tied", spm)
    write_adapter(tmp_path / "a1", config)
    write_adapter(tmp_path / "a2", config, seed=6)
    arguments = ["model", "convert-internlm2", str(base), str(tmp_path / "a1"), str(tmp_path / "a2")]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "base" / "model.safetensors").is_file()
    assert (tmp_path / "out" / "a1" / "adapter_model.safetensors").is_file()
    settings = json.loads((tmp_path / "out" / "a2" / "adapter_config.json").read_text(encoding="utf-8"))
    assert settings["base_model_name_or_path"] == str(tmp_path / "out" / "base")


CODE = """
raise SystemExit("never run")
class InternLM2ForCausalLM:
    def chat(self, tokenizer, query, history=None, temperature=0.8, meta_instruction: str = "You are a model.\\n"
             "- 书生 is kind.", **kwargs):
        pass
"""


def test_the_system_text_of_its_chat_method_is_kept_and_its_code_is_not_run(spm, tmp_path):
    base, _, _ = write_base(tmp_path / "internlm2", "tied", spm)
    told = []
    convert_base(base, tmp_path / "without", told.append)
    assert chat_system(tmp_path / "without") is None
    assert any("modeling_internlm2.py" in line for line in told)
    (base / "modeling_internlm2.py").write_text(CODE, encoding="utf-8")
    convert_base(base, tmp_path / "with", told.append)
    assert chat_system(tmp_path / "with") == "You are a model.\n- 书生 is kind."
    assert not list((tmp_path / "with").glob("*.py"))
