"""One epoch of LoRA training, by this toolkit and by its peers: same rows, same adapter, same logging.

    python benchmarks/train_vs_peers.py --llamafactory /path/to/venv/bin/python
    python benchmarks/train_vs_peers.py --model smollm2-135m-instruct --dialogues 8 --repeats 1      # takes a while

Every run is a process of its own, and the ways take turns, so that a busy minute falls on all of them. What is timed
is the training loop: no imports, no model loading, no tokenising. Nothing has to be there: the dialogues are made, in
the shape of ESConv (turns and words a turn) of words that mean nothing, and so is the model, SmolLM2-135M in small
(Llama-shaped, 11 million parameters, a fifth of them in the head). The ways:

    ours            this toolkit: whole dialogues, batches by length, head on supervised positions
    ours, trl order the same with rows in the order TRL reads them: its losses must be TRL's
    ours, turns     this toolkit with data.expand: turns
    trl             what the script behind `trl sft` does, as it comes (gradient checkpointing on)
    trl, no ckpt    the same with gradient checkpointing off
    llamafactory    LLaMA-Factory's own entry point, as it comes; only with --llamafactory
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("ours", "ours, turns", "trl", "trl, no ckpt", "llamafactory", "ours, trl order")
TARGETS = {"trl": 2.2, "llamafactory": 1.5, "ours, turns": 3.5}
ONCE = "ours, trl order"
LORA = {"r": 16, "alpha": 32, "dropout": 0.0}
MAX_LENGTH = 2048

# Equal for all; gradient checkpointing is each one's own default unless a way says otherwise.
TRAINING: dict[str, Any] = {
    "num_train_epochs": 1,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "optim": "adamw_torch",
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "bf16": False,
}


# ---- the rows


def made_dialogues(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Dialogue records of ESConv's shape: 16 to 40 turns that alternate, 3 to 60 words, 17 on average."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("aeioulnrstdmpk", k=draw.randint(2, 7))) for _ in range(900)]

    def text() -> str:
        return " ".join(draw.choices(words, k=max(3, min(60, round(draw.lognormvariate(2.55, 0.7))))))

    made = []
    for number in range(count):
        sides = ("seeker", "supporter") if draw.random() < 0.7 else ("supporter", "seeker")
        turns = [{"speaker": sides[at % 2], "text": text()} for at in range(draw.randint(16, 40))]
        card = {"id": f"card-{number}", "language": "en", "problem": text(), "source": "made"}
        made.append({"id": f"made-{number}", "language": "en", "source": "made", "turns": turns, "card": card})
    return made


def write_rows(folder: Path, count: int) -> None:
    """dialogues.jsonl for this toolkit, and the same as messages for its peers."""
    from data_prep.chat_format import training_messages
    from data_prep.prompt import load_prompt
    from data_prep.records import Dialogue

    dialogues = made_dialogues(count)
    rows = []
    for number, content in enumerate(dialogues):
        found = Dialogue(**content)
        messages = training_messages(found, "seeker", load_prompt("seeker"), load_prompt("greeting"), f"row {number}")
        last = max(at for at, message in enumerate(messages) if message["role"] == "assistant")
        rows.append({"messages": messages[: last + 1]})
    for name, lines in (("dialogues", dialogues), ("messages", rows)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer(text: Path) -> Any:
    """A ChatML tokenizer of 4,096 words that knows those of the file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(text)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHATML,
        model_max_length=MAX_LENGTH,
    )


def make_model(folder: Path, dialogues: Path) -> None:
    """A chat model with the proportions of SmolLM2-135M, random weights, and a tokenizer that knows the made words."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    fast = make_tokenizer(dialogues)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)


# ---- one run, in a process of its own


def make_meter() -> Any:
    """A callback that counts and times the training loop; it works in each library, since all are built on Trainer."""
    from transformers import TrainerCallback

    class Meter(TrainerCallback):
        def __init__(self) -> None:
            self.found: dict[str, Any] = {"tokens": 0, "padded": 0}

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            model.get_input_embeddings().register_forward_pre_hook(self.count)
            rows = more["train_dataloader"].dataset
            labels = rows["labels"]
            self.found["supervised"] = sum(label != -100 for row in labels for label in row[1:])
            self.found["rows"] = len(labels)
            self.found["tokens"] = sum(len(row) for row in labels)
            self.wall, self.cpu = time.perf_counter(), time.process_time()

        def count(self, module: Any, inputs: Any) -> None:
            self.found["padded"] += inputs[0].numel()

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.found["wall"] = time.perf_counter() - self.wall
            self.found["cpu"] = time.process_time() - self.cpu
            self.found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            self.found["losses"] = [entry["loss"] for entry in state.log_history if "loss" in entry]

    return Meter()


def run_ours(way: str, spec: dict[str, Any], meter: Any) -> None:
    from train.recipe import load_recipe
    from train.sft import build_trainer

    recipe = {
        "kind": "seeker",
        "out": spec["out"],
        "model": {"base": spec["model"], "dtype": "float32"},
        "lora": LORA,
        "data": {
            "train": f"{spec['folder']}/dialogues.jsonl",
            "max_length": MAX_LENGTH,
            "expand": "turns" if way == "ours, turns" else "dialogues",
        },
        "training": TRAINING,
    }
    path = Path(spec["out"]) / "recipe.json"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    trainer, _ = build_trainer(load_recipe(path))  # type: ignore[arg-type]
    if way == ONCE:
        trainer._get_train_sampler = super(type(trainer), trainer)._get_train_sampler
    trainer.add_callback(meter)
    trainer.train()


def run_trl(way: str, spec: dict[str, Any], meter: Any) -> None:
    """What trl/scripts/sft.py does with a file of messages and --use_peft; the template marks what is learned."""
    import torch
    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
    from trl import SFTConfig, SFTTrainer

    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(spec["model"])
    tokenizer.chat_template = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    )
    options = {"gradient_checkpointing": False} if way == "trl, no ckpt" else {}
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32),
        args=SFTConfig(
            output_dir=spec["out"],
            assistant_only_loss=True,
            max_length=MAX_LENGTH,
            use_cpu=True,
            seed=0,
            report_to="none",
            dataloader_pin_memory=False,
            **TRAINING,
            **options,
        ),
        train_dataset=load_dataset("json", data_files=f"{spec['folder']}/messages.jsonl", split="train"),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=LORA["r"],
            lora_alpha=LORA["alpha"],
            lora_dropout=LORA["dropout"],
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
        callbacks=[meter],
    )
    trainer.train()


def run_llamafactory(way: str, spec: dict[str, Any], meter: Any) -> None:
    from llamafactory.train.tuner import run_exp

    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    info = {
        "file_name": f"{spec['folder']}/messages.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": {**tags, "system_tag": "system"},
    }
    (Path(spec["out"]) / "dataset_info.json").write_text(json.dumps({"made": info}), encoding="utf-8")
    arguments = {
        **TRAINING,
        "stage": "sft",
        "do_train": True,
        "model_name_or_path": spec["model"],
        "dataset": "made",
        "dataset_dir": spec["out"],
        "template": "chatml",
        "cutoff_len": MAX_LENGTH,
        "finetuning_type": "lora",
        "lora_rank": LORA["r"],
        "lora_alpha": LORA["alpha"],
        "lora_dropout": LORA["dropout"],
        "lora_target": "all",
        "output_dir": f"{spec['out']}/result",
        "seed": 0,
        "report_to": "none",
        "overwrite_cache": True,
    }
    run_exp(args=arguments, callbacks=[meter])


def work(way: str, spec: dict[str, Any]) -> None:
    """Runs one way here and prints its figures as the last line."""
    meter = make_meter()
    runner = {"o": run_ours, "t": run_trl, "l": run_llamafactory}[way[0]]
    runner(way, spec, meter)
    print("\n" + json.dumps(meter.found))


# ---- all of them


def run(way: str, python: str, model: str, folder: Path) -> dict[str, Any]:
    """One run in a child process. Raises RuntimeError with the child's last words when it fails."""
    with tempfile.TemporaryDirectory() as out:
        spec = json.dumps({"model": model, "folder": str(folder), "out": out})
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_MODE": "disabled"}
        if way != "llamafactory":
            environment["PYTHONPATH"] = str(ROOT)
        done = subprocess.run(
            [python, __file__, "--worker", way, "--spec", spec],
            capture_output=True,
            text=True,
            env=environment,
            cwd=out,
        )
    if done.returncode:
        raise RuntimeError("\n".join((done.stderr or done.stdout).strip().splitlines()[-6:]))
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Medians over the repeats, and how many times each way takes what ours does (pairs of one round)."""
    head = (
        "| way | rows | tokens | forwarded | supervised | CPU s | wall s | peak MB | CPU ratio | wall ratio | target |"
    )
    lines = [head, "|---" + "|---:" * 10 + "|"]
    for way, found in runs.items():
        middle = {name: statistics.median(one[name] for one in found) for name in ("cpu", "wall", "peak_mb")}
        ratios = [
            statistics.median(one[name] / ours[name] for one, ours in zip(found, runs["ours"], strict=False))
            for name in ("cpu", "wall")
        ]
        first = found[0]
        counts = " | ".join(f"{first[name]:,}" for name in ("rows", "tokens", "padded", "supervised"))
        lines.append(
            f"| {way} | {counts} | {middle['cpu']:.1f} | {middle['wall']:.1f} | {middle['peak_mb']:,.0f} | "
            f"{ratios[0]:.2f} | {ratios[1]:.2f} | {TARGETS.get(way, '')} |"
        )
    return "\n".join(lines)


def compare_losses(runs: dict[str, list[dict[str, Any]]]) -> str:
    """How far the losses of runs that read the same rows in the same order are apart, step by step."""
    if not {"trl", ONCE} <= runs.keys():
        return ""
    pairs = list(zip(runs["trl"][0]["losses"], runs[ONCE][0]["losses"], strict=True))
    apart = max(abs(a - b) for a, b in pairs)
    return (
        f"Losses in TRL's order, {len(pairs)} steps: largest difference to TRL's {apart:.1e} "
        f"(they begin at {pairs[0][0]:.3f}, end at {pairs[-1][0]:.3f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a fetched model's name, or a folder; default: one that is made")
    parser.add_argument("--dialogues", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--llamafactory", default=os.environ.get("LLAMAFACTORY_PYTHON"), help="python of its venv")
    parser.add_argument("--json", help="write every figure here")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--spec", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, json.loads(given.spec))
        return
    sys.path.insert(0, str(ROOT))
    from train.models import resolve_base

    ways = [way for way in WAYS if way in given.ways]
    if "llamafactory" in ways and not given.llamafactory:
        print("llamafactory: skipped; name the python of an environment that has it with --llamafactory")
        ways.remove("llamafactory")
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder), given.dialogues)
        model = f"{folder}/model"
        if given.model:
            model = str(Path(resolve_base(given.model)).resolve())
        else:
            make_model(Path(model), Path(folder) / "messages.jsonl")
        for round_number in range(given.repeats):
            for way in ways:
                if way == ONCE and round_number:
                    continue
                python = given.llamafactory if way == "llamafactory" else sys.executable
                try:
                    runs[way].append(run(way, python, model, Path(folder)))
                except RuntimeError as error:
                    print(f"{way}: failed\n{error}")
                    sys.exit(1)
                last = runs[way][-1]
                print(
                    f"round {round_number + 1}  {way}: {last['wall']:.1f} s wall, {last['cpu']:.1f} s CPU", flush=True
                )
    print(f"\n{table(runs)}\n\n{compare_losses(runs)}")
    if given.json:
        Path(given.json).write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
