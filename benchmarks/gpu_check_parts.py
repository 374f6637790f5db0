"""The parts of gpu_check.py; started by it: python gpu_check_parts.py FOLDER PART... [--tiny]

Each part writes what it has found so far into FOLDER/part-NAME.json after every run, so that nothing is lost when it
fails or is ended. A part that fails ends the process: after some errors a GPU answers nothing more.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from gpu_check import ROOT
from gpu_check_runs import GB, Check, Ways, take_turns
from train_vs_peers import made_dialogues, make_tokenizer

from data_prep.records import RoleCard, read_records
from eval.chat_models import load_chat_models
from eval.chat_models.base import Reply, Request, Sampling, Stats, split_thinking
from eval.runs import Transcript
from eval.simulate import SimulationSettings, simulate
from train.loss import supervised_loss
from train.masking import ChatRenderer
from train.models import add_lora, load_causal, load_chat_model, load_tokenizer
from train.perplexity import batch_of
from train.plan_model import known_shapes
from train.recipe import ChatRecipe
from train.row_cache import prepare
from train.sft import build_trainer, needs_library_loss

SHAPE = "Qwen/Qwen2.5-1.5B-Instruct"
TINY_SHAPE = {"vocab_size": 4200, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TINY_SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}


# ---- model


def part_model(check: Check) -> None:
    """Qwen2.5-1.5B's shape. Words that the made tokenizer lacks and control tokens have the embedding 0, so that no
    greedy reply holds one: every reply runs to its limit, the same work for all."""
    from transformers import AutoConfig, AutoModelForCausalLM

    dialogues = check.folder / "dialogues.jsonl"
    made = made_dialogues(check.size["dialogues"])
    lines = [json.dumps({**one, "turns": one["turns"][: check.size["length"]]}) for one in made]
    dialogues.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    tokenizer = make_tokenizer(dialogues)
    values = {**known_shapes()[SHAPE]["config"], **(TINY_SHAPE if check.tiny else {})}
    values |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(0)
    with torch.device(check.device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if check.device == "cuda" else torch.float32
        )
    with torch.no_grad():
        words = model.get_input_embeddings().weight
        words[len(tokenizer) :] = 0
        words[list(tokenizer.all_special_ids)] = 0
    model.save_pretrained(check.model)
    tokenizer.save_pretrained(check.model)
    machine = {"torch": torch.__version__, "device": "CPU"}
    if check.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        machine["device"] = f"{properties.name}, {properties.total_memory / GB:.0f} GB, CUDA {torch.version.cuda}"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    check.save(machine=machine, notes=[f"{parameters / 1e6:,.1f} million parameters, {model.dtype}"])


# ---- loss


def part_loss(check: Check) -> None:
    """One batch, one model, three ways to its loss: all must agree with the logits of every position."""
    recipe, _ = check.fitting("loss")
    recipe = check.recipe("loss", recipe.training["per_device_train_batch_size"], dropout=0.0)
    trainer, _ = build_trainer(recipe)
    model = trainer.model.train()
    ids, mask, labels = batch_of(prepare(recipe).train.encoded()[: recipe.training["per_device_train_batch_size"]])
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    batch = {name: value.to(check.device) for name, value in batch.items()}

    def fused() -> Any:
        out = model(**batch, fused_lm_head=True)
        return -out.log_probs.sum() / out.label_mask.sum()

    def supervised() -> Any:
        found = supervised_loss(model, batch)
        return found.total / found.tokens

    losses = {
        "all logits": lambda: model(**batch, use_cache=False).loss,
        "supervised positions": supervised,
        "TRL's fused head": fused,
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients: dict[str, Any] = {}

    def measure(way: str) -> dict[str, Any]:
        mixed = torch.autocast("cuda", torch.bfloat16) if check.device == "cuda" else nullcontext()
        model.zero_grad()
        before = check.clock()
        with mixed:
            loss = losses[way]()
        loss.backward()
        after = check.clock()
        gradients[way] = torch.cat([p.grad.detach().float().flatten() for p in trained if p.grad is not None]).cpu()
        return {"ms": 1000 * (after - before), "loss": float(loss.detach())}

    for way in losses:
        measure(way)  # kernels are compiled, memory is taken
    ways = {way: lambda way=way: measure(way) for way in losses}
    rows = take_turns(check, ways, check.size["repeats"], "ms", "all logits", afresh=False)
    loss, gradient = rows[0]["loss"], gradients["all logits"]
    limits = (1e-5, 1e-4) if check.device == "cpu" else (5e-3, 5e-2)
    for row in rows[1:]:
        row["loss apart"] = abs(row["loss"] - loss) / loss
        row["gradients apart"] = float((gradients[row["way"]] - gradient).norm() / gradient.norm())
        row["equal"] = row["loss apart"] < limits[0] and row["gradients apart"] < limits[1]
    notes = [
        f"{row['way']}: loss {row['loss apart']:.1e}, gradients {row['gradients apart']:.1e} from those of all logits: "
        f"{'equal' if row['equal'] else 'NOT EQUAL'} (limits {limits[0]:g}, {limits[1]:g})"
        for row in rows[1:]
    ]
    taken = "TRL's fused head" if needs_library_loss(trainer) else "supervised positions"
    check.save(rows=rows, notes=[*notes, f"the trainer takes: {taken}; {tuple(ids.shape)} tokens"])


# ---- train and packing


def train_steps(check: Check, trainer: Any) -> dict[str, Any]:
    """Trains and measures the steps after those that warm up. Counts are of the rows, without padding."""
    from transformers import TrainerCallback

    warm = check.size["warm"]
    batches: list[tuple[int, int, int]] = []
    clock: dict[str, float] = {}

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == warm:
                clock["start"] = check.clock()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == state.max_steps:
                clock["end"] = check.clock()

    collate = trainer.data_collator

    def counted(rows: Sequence[Any]) -> Any:
        batch = collate(rows)
        supervised = sum(label != -100 for row in rows for label in row["labels"][1:])
        batches.append((batch["input_ids"].numel(), sum(len(row["input_ids"]) for row in rows), supervised))
        return batch

    trainer.data_collator = counted
    trainer.add_callback(Clock())
    trainer.train()
    seconds = clock["end"] - clock["start"]
    forwarded, tokens, supervised = (
        sum(numbers) for numbers in zip(*batches[warm : trainer.state.max_steps], strict=True)
    )
    rates = {"tokens/s": tokens, "supervised/s": supervised, "forwarded/s": forwarded}
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {**{name: count / seconds for name, count in rates.items()}, "ms": 1000 * seconds, "losses": losses}


def toolkit(check: Check, recipe: ChatRecipe) -> dict[str, Any]:
    return train_steps(check, build_trainer(recipe)[0])


def plain(check: Check, recipe: ChatRecipe) -> dict[str, Any]:
    """transformers' Trainer as it comes: random order, padding to the longest, the loss of all logits."""
    from datasets import Dataset
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments, set_seed

    set_seed(recipe.seed)
    tokenizer, on_gpu = load_tokenizer(recipe.model), check.device == "cuda"
    rows = [{"input_ids": row.input_ids, "labels": row.labels} for row in prepare(recipe, tokenizer).train.encoded()]
    assert recipe.lora is not None
    arguments = TrainingArguments(
        output_dir=recipe.out,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        dataloader_pin_memory=on_gpu,
        **recipe.training,
    )
    return train_steps(
        check,
        Trainer(
            model=add_lora(load_causal(recipe.model), recipe.lora, "CAUSAL_LM"),
            args=arguments,
            train_dataset=Dataset.from_list([{**row, "attention_mask": [1] * len(row["labels"])} for row in rows]),
            data_collator=DataCollatorForSeq2Seq(tokenizer),
        ),
    )


def part_train(check: Check) -> None:
    recipe, plan = check.fitting("train")
    ways = {"esckit": lambda: toolkit(check, recipe), "plain Trainer": lambda: plain(check, recipe)}
    rows = take_turns(check, ways, check.size["rounds"], "supervised/s", "plain Trainer", afresh=True)
    memory = plan.single if check.device == "cuda" else plan.cpu
    assert memory is not None
    assert memory.total is not None
    tensors, total = (memory.total - memory.parts["reserve"]) / GB, memory.total / GB
    batch, length = plan.step.batch, plan.step.length
    note = f"largest batch {batch} x {length}; the plan: {tensors:.2f} GB of tensors, {total:.2f} GB with its reserve"
    ours = rows[0]
    if "peak GB" in ours:
        apart = 100 * (tensors / ours["peak GB"] - 1)
        note += f"; measured {ours['peak GB']:.2f} GB of tensors ({apart:+.0f} %), {ours['reserved GB']:.2f} GB in all"
    check.save(notes=[note], plan={"parts": memory.parts, "total": memory.total})


def part_packing(check: Check) -> None:
    """A packed row has 2,048 tokens, some two or three dialogues: half as many rows a step."""
    from transformers.utils import is_flash_attn_2_available

    recipe, _ = check.fitting("packing")
    batch = int(recipe.training["per_device_train_batch_size"])
    kinds = ["sdpa"]
    if check.device == "cuda" and is_flash_attn_2_available():
        kinds.append("flash_attention_2")
    ways: Ways = {}
    for attention in kinds:
        for packing in (False, True):
            name = f"{'packed' if packing else 'by length'}, {attention}"
            rows = max(1, batch // 2) if packing else batch
            made = check.recipe(name, rows, attention=attention, packing=packing)
            ways[name] = lambda made=made: toolkit(check, made)
    take_turns(check, ways, check.size["rounds"], "tokens/s", "by length, sdpa", afresh=True)
    check.save(notes=[] if len(kinds) > 1 else ["flash attention is not here; only SDPA was run"])


# ---- simulation


class OneByOne:
    """A chat model that reads the whole prompt again for every reply, by the library's own `generate`."""

    name = "one by one"

    def __init__(self, folder: Path, dtype: str):
        self.model, tokenizer = load_chat_model(str(folder), dtype=dtype)
        self.renderer, self.stats = ChatRenderer(tokenizer), Stats()
        self.context_length = int(self.model.config.max_position_embeddings)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name}

    def forget(self) -> None:
        """Nothing is kept."""

    def reply(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        return [self.answer(self.renderer.prompt(request.messages), sampling) for request in requests]

    @torch.inference_mode()
    def answer(self, prompt: list[int], sampling: Sampling) -> Reply:
        ids = torch.tensor([prompt], device=self.model.device)
        stops = self.renderer.stop_ids
        new = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=list(stops),
            pad_token_id=stops[0],
        )[0, len(prompt) :].tolist()
        self.stats.prompt_read += len(prompt)
        self.stats.generated += len(new)
        stopped = bool(new) and new[-1] in stops
        text, thinking = split_thinking(self.renderer.tokenizer.decode(new, skip_special_tokens=True))
        return Reply(text, "stop" if stopped else "length", None, None, thinking, len(prompt), len(new))


def part_simulation(check: Check) -> None:
    compare(check, "auto", check.size["turns"], check.size["rounds"])
    if check.device == "cuda" and check.has_time(25):
        compare(check, "float32", 1, 1)


def compare(check: Check, dtype: str, turns: int, times: int) -> None:
    """The engine on all cards in one batch, and one conversation after another on the first few of them."""
    cards = read_records(ROOT / "data_prep" / "samples" / "cards.jsonl", RoleCard)[: check.size["cards"]]
    few = cards[: check.size["alone"]]
    sampling = Sampling(max_new_tokens=check.size["new"], temperature=0)
    settings = SimulationSettings(
        rounds=turns, batch_size=len(cards), seeker_sampling=sampling, supporter_sampling=sampling
    )
    engine, slow = load_chat_models([str(check.model)], dtype)[0], OneByOne(check.model, dtype)
    texts: dict[str, dict[str, list[str]]] = {}

    def run(way: str, model: Any, chosen: Sequence[RoleCard]) -> dict[str, Any]:
        model.stats, before = Stats(), check.clock()
        done: list[Transcript] = [one for batch in simulate(chosen, model, model, settings) for one in batch]
        seconds = check.clock() - before
        texts[way] = {one.key: [turn.text for turn in one.turns] for one in done}
        said = sum(len(one.turns) - 1 for one in done)
        stats = model.stats
        return {"utterances/s": said / seconds, "read": stats.prompt_read, "reused": stats.prompt_reused}

    warm_up = settings.model_copy(update={"rounds": 1})
    for model in (engine, slow):
        list(simulate(few[:1], model, model, warm_up))
    names = {"engine": f"engine, {len(cards)} at once, {dtype}", "alone": f"one by one, {dtype}"}
    ways = {
        names["engine"]: lambda: run("engine", engine, cards),
        names["alone"]: lambda: run("alone", slow, few),
    }
    take_turns(check, ways, times, "utterances/s", names["alone"], afresh=False)
    pairs = [
        pair
        for key, said in texts.get("alone", {}).items()
        for pair in zip(said[1:], texts["engine"][key][1:], strict=False)
    ]
    equal = sum(left == right for left, right in pairs)
    notes = [f"{dtype}: {equal} of {len(pairs)} utterances are the same under greedy decoding"]
    check.save(notes=[*check.found["notes"], *notes], **{f"equal {dtype}": [equal, len(pairs)]})


PARTS = {
    "model": part_model,
    "loss": part_loss,
    "train": part_train,
    "packing": part_packing,
    "simulation": part_simulation,
}


def main() -> None:
    arguments = [text for text in sys.argv[1:] if text != "--tiny"]
    check = Check(Path(arguments[0]), "--tiny" in sys.argv)
    for name in arguments[1:]:
        check.begin(name)
        try:
            PARTS[name](check)
        except Exception as error:
            check.save(status="failed", error=f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")
            raise
        check.save(status="done")
        check.forget()


if __name__ == "__main__":
    main()
