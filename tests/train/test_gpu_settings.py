"""What the toolkit does where there is a GPU, as far as a CPU can show it: dtypes, 4-bit settings, mixed precision."""

import sys
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from data_prep.errors import UserError
from tests.train.made import chat_content, dialogue, recipe_of, write_lines
from train import callbacks
from train.loss import SummedCrossEntropy, supervised_loss
from train.models import add_lora, load_options, pick_dtype
from train.ordinal import KINDS, make_heads
from train.packing import check_isolation
from train.recipe_sections import LoraSection, ModelSection
from train.scorer_model import pool
from train.sft import build_trainer


def pretend_gpu(monkeypatch, bfloat16: bool) -> None:
    """A GPU that has bfloat16, or one that torch lets imitate it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: bfloat16 or including_emulation
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0) if bfloat16 else (7, 5))


@pytest.mark.parametrize(("has", "wanted"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_is_bfloat16_only_where_the_gpu_computes_in_it(monkeypatch, has, wanted):
    pretend_gpu(monkeypatch, has)
    assert pick_dtype("auto") is wanted


@pytest.mark.parametrize(
    ("dtype", "has", "unpacked", "rest"),
    [
        ("auto", True, torch.bfloat16, torch.bfloat16),
        ("auto", False, torch.float16, torch.float32),
        ("float16", True, torch.float16, torch.float16),
        ("float32", True, torch.bfloat16, torch.float32),
    ],
)
def test_four_bit_matrices_are_unpacked_to_a_half_type_that_the_gpu_has(monkeypatch, dtype, has, unpacked, rest):
    pretend_gpu(monkeypatch, has)
    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes"))
    seen = {}
    monkeypatch.setattr("transformers.BitsAndBytesConfig", lambda **options: seen.update(options) or "config")
    options = load_options(ModelSection(base="m", dtype=dtype, quantization="4bit"))
    assert options["quantization_config"] == "config"
    assert options["dtype"] is rest
    assert seen == {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": unpacked,
    }


def test_four_bit_without_bitsandbytes_is_one_line(monkeypatch):
    pretend_gpu(monkeypatch, True)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"^model\.quantization: 4bit needs bitsandbytes; run: pip install"):
        load_options(ModelSection(base="m", quantization="4bit"))


def test_a_four_bit_model_learns_where_bitsandbytes_is_installed(tmp_path, monkeypatch):
    """bitsandbytes also works on a CPU, so that the settings can be tried; a recipe asks for a GPU all the same."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=600, initializer_range=0.1, **shape)).save_pretrained(tmp_path)
    with monkeypatch.context() as pretended:
        pretend_gpu(pretended, True)
        options = load_options(ModelSection(base=str(tmp_path), attention="sdpa", quantization="4bit"))
    ids = torch.arange(3, 43)[None]
    batch = {"input_ids": ids, "labels": ids}
    plain = supervised_loss(AutoModelForCausalLM.from_pretrained(tmp_path), batch)
    model = add_lora(AutoModelForCausalLM.from_pretrained(tmp_path, **options), LoraSection(dropout=0), "CAUSAL_LM")
    packed = [one for one in model.parameters() if isinstance(one, bitsandbytes.nn.Params4bit)]
    assert len(packed) == 2 * 7
    found = supervised_loss(model, batch)
    found.total.backward()
    assert float(found.total) == pytest.approx(float(plain.total), rel=0.1)
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.requires_grad)
    assert any(bool(p.grad.any()) for p in model.parameters() if p.requires_grad)


def test_mixed_precision_rounds_no_figure_of_the_loss():
    logits, targets = torch.randn(40, 3000) * 4, torch.randint(3000, (40,))
    plain = SummedCrossEntropy.apply(logits, targets)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = SummedCrossEntropy.apply(logits, targets)
    assert [float(value) for value in mixed] == [float(value) for value in plain]


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_precision_rounds_no_score(kind):
    torch.manual_seed(0)
    heads = make_heads(kind, 64, [5, 3])
    torch.nn.init.normal_(heads.score.weight)
    vectors = torch.randn(6, 64)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = heads(vectors)
    for left, right in zip(heads(vectors), mixed, strict=True):
        assert torch.equal(left, right)


def test_the_mean_over_a_long_text_is_not_rounded():
    torch.manual_seed(0)
    hidden = torch.randn(1, 400, 8).to(torch.bfloat16)
    mask = torch.ones(1, 400, dtype=torch.long)
    mask[0, 301:] = 0
    torch.testing.assert_close(pool(hidden, mask, "mean"), hidden[:, :301].float().mean(1))


class Rounded(torch.nn.Module):
    """Packed and single texts agree but for the noise that two half-precision kernels may have."""

    dtype = torch.bfloat16

    def __init__(self, noise: float):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(50, 2000))
        self.noise, self.config = noise, None

    def forward(self, input_ids, position_ids=None, use_cache=False):
        logits = self.weight[input_ids].detach()
        if position_ids is not None:
            logits = logits + self.noise * torch.randn(logits.shape)
        return type("Output", (), {"logits": logits})


def test_rounding_in_half_precision_is_not_taken_for_a_leak():
    """Noise of 4 % of the logits, as measured of a deep model in bfloat16: the largest difference is far above."""
    torch.manual_seed(0)
    check_isolation(Rounded(0.04), 50)
    with pytest.raises(UserError, match="lets packed dialogues see each other"):
        check_isolation(Rounded(0.5), 50)


def test_a_step_that_does_not_fit_is_one_line(tiny_model, tmp_path, monkeypatch):
    data = write_lines(tmp_path / "one.jsonl", [dialogue("d", "how are you?", "sad")])
    recipe = recipe_of(tmp_path, chat_content(tiny_model, tmp_path / "out", data, max_steps=1, save_strategy="no"))
    trainer, _ = build_trainer(recipe)

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(trainer, "training_step", full)
    with pytest.raises(UserError, match=r"^step 1 does not fit into the accelerator's memory; .*--plan"):
        callbacks.run_training(trainer, recipe, None)
