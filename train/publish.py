"""What leaves a training run: merged weights, a hub repository, or what Ollama and vLLM need to serve it.

Everything is checked before anything is written, and what another program has to do is printed as commands, never run.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from data_prep.errors import UserError
from data_prep.records import write_text
from train.masking import ChatRenderer
from train.merge import PROBE, MergeReport, merged_model, save_merged
from train.model_card import card_of
from train.models import adapter_base, open_tokenizer, resolve_base
from train.templates import pieces_of

Say = Callable[[str], None]
CARRIED = ("recipe.yaml", "metrics.json", "README.md")
# What must never be uploaded although it lies in a result folder.
NOT_UPLOADED = (
    *("checkpoints/*", "*/checkpoints/*", "samples.jsonl", "wandb/*", "*.log", "runs/*", "training_args.bin"),
    # What people said, and what was learned of a rater by name.
    *("data/*", "out_of_fold.jsonl", "raters.json", "*/raters.json"),
)
# Ranks that vLLM accepts for --max-lora-rank.
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
OLLAMA_READS = ("LlamaForCausalLM", "MistralForCausalLM", "Gemma2ForCausalLM", "Qwen2ForCausalLM", "Phi3ForCausalLM")


def is_adapter(folder: str | Path) -> bool:
    return (Path(folder) / "adapter_config.json").is_file()


def save_generation_config(out: str | Path, renderer: ChatRenderer) -> None:
    """Writes generation_config.json: generation ends on what ends a turn in training, whoever serves the model."""
    from transformers import GenerationConfig

    stops = renderer.stop_ids
    GenerationConfig(
        eos_token_id=stops if len(stops) > 1 else stops[0], pad_token_id=renderer.tokenizer.pad_token_id
    ).save_pretrained(out)


def export_merged(model: str, out: Path, base: str | None, dtype: str, say: Say) -> MergeReport | None:
    """Writes a folder with merged weights, tokenizer, template and generation config. None for a full fine-tune,
    which is merged already and is copied.

    Raises UserError when `out` is not empty, or the merge cannot be proven.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: is not empty; choose another --out")
    source = Path(model)
    if not is_adapter(source):
        if not (source / "config.json").is_file():
            raise UserError(f"{model}: is no result of `esckit train` (neither adapter_config.json nor config.json)")
        shutil.copytree(source, out, ignore=shutil.ignore_patterns("checkpoints", *NOT_UPLOADED), dirs_exist_ok=True)
        return None
    merged, tokenizer, report = merged_model(base or adapter_base(source), model, dtype)
    say(
        f"checked on {len(PROBE)} probe texts in {report.dtype}: the merge moved the logits by "
        f"{report.change:.2g} standard deviations ({report.same_top:.0%} of the most probable tokens the same; "
        f"the adapter itself moves {report.adapter_effect:.2g})"
    )
    save_merged(merged, tokenizer, out)
    save_generation_config(out, ChatRenderer(tokenizer))
    for name in CARRIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)
    write_text(out / "merge.json", json.dumps(asdict(report), indent=1) + "\n")
    return report


def export_hub(model: str, repo: str, private: bool, say: Say) -> str:
    """Uploads a result folder (adapter or merged) to the hub; returns its address.

    Only what belongs to the model is sent: no checkpoint, no sample generation, no log. Raises UserError without a
    token, for a bad name, and when the hub refuses.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    folder = Path(model)
    if not (is_adapter(folder) or (folder / "config.json").is_file() or (folder / "scorer_config.json").is_file()):
        raise UserError(f"{model}: is no result of `esckit train`")
    if not (folder / "README.md").is_file():
        write_text(folder / "README.md", card_of(folder))
    if get_token() is None:
        raise UserError("no hub token is set; run `hf auth login`, or set HF_TOKEN")
    api = HfApi()
    try:
        address = api.create_repo(repo, private=private, exist_ok=True)
        say(f"uploading {model} to {address}")
        api.upload_folder(
            folder_path=folder,
            repo_id=repo,
            ignore_patterns=list(NOT_UPLOADED),
            commit_message="Upload with esckit",
        )
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        raise UserError(f"the hub did not take {repo!r}: {' '.join(str(error).split())[:300]}") from None
    return str(address)


def vllm_commands(model: str, name: str) -> list[str]:
    """The command that serves a result folder with vLLM, after a look at what it needs.

    Raises UserError for what vLLM would refuse: DoRA, a rank it has no kernel for, a missing template.
    """
    folder = Path(model)
    if not is_adapter(folder):
        _needs(folder, "config.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
        return [f"vllm serve {folder} --served-model-name {name}"]
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    if config.get("use_dora"):
        raise UserError(f"{model}: vLLM serves no DoRA adapter; merge it first: esckit model export FOLDER --to merged")
    if config.get("modules_to_save"):
        raise UserError(f"{model}: vLLM serves no adapter with whole modules; merge it first with --to merged")
    _needs(folder, "adapter_model.safetensors", "chat_template.jinja")
    rank = next((rank for rank in VLLM_RANKS if rank >= config["r"]), None)
    if rank is None:
        raise UserError(f"{model}: rank {config['r']} is more than vLLM serves ({VLLM_RANKS[-1]}); merge it first")
    return [
        f"vllm serve {resolve_base(adapter_base(folder))} --enable-lora --max-lora-rank {rank} "
        f"--lora-modules {name}={folder} --chat-template {folder / 'chat_template.jinja'}"
    ]


def ollama_files(model: str, name: str) -> list[str]:
    """Writes a Modelfile beside merged weights; returns the commands that make and run the model in Ollama.

    Raises UserError for an adapter (merge it first), an architecture that Ollama does not import, and a chat template
    that Ollama's own language cannot say.
    """
    folder = Path(model)
    if is_adapter(folder):
        raise UserError(f"{model}: Ollama takes merged weights: esckit model export {model} --to merged --out FOLDER")
    _needs(folder, "config.json", "tokenizer.json")
    architecture = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    if architecture not in OLLAMA_READS:
        raise UserError(f"{model}: Ollama imports {', '.join(OLLAMA_READS)}, this is {architecture}; use vLLM")
    tokenizer = open_tokenizer(str(folder))
    renderer = ChatRenderer(tokenizer)
    stops = [tokenizer.decode([token]) for token in renderer.stop_ids]
    lines = ["FROM .", f'TEMPLATE """{ollama_template(renderer)}"""']
    lines += [f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in stops]
    write_text(folder / "Modelfile", "\n".join(lines) + "\n")
    return [f"ollama create {name} -f {folder / 'Modelfile'}", f"ollama run {name}"]


def ollama_template(renderer: ChatRenderer) -> str:
    """The chat template in Ollama's language (Go's), proven to say the same as the model's own for conversations that
    begin with a system message, as all of ours do.

    Every message must be a text before and a text after that depend on its role alone. Raises UserError otherwise.
    """
    around, opening = role_wrapping(renderer)
    cases = "".join(
        f'{{{{ if eq .Role "{role}" }}}}{_go(before)}{{{{ .Content }}}}{_go(after)}{{{{ end }}}}'
        for role, (before, after) in around.items()
    )
    return f"{{{{ range .Messages }}}}{cases}{{{{ end }}}}{_go(opening)}"


def _go(text: str) -> str:
    """Text as a Go template's literal action, so that nothing in it is read as the template's own."""
    return (
        f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}" if "{{" in text or "}}" in text or '"""' in text else text
    )


def role_wrapping(renderer: ChatRenderer) -> tuple[dict[str, tuple[str, str]], str]:
    """role -> (text before, text after) of a message, and what opens the model's turn.

    Raises UserError for a template that treats a message by its place (Mistral puts the system text into the first
    user turn).
    """
    whole = pieces_of(renderer.tokenizer, ("system", "user", "assistant", "user", "assistant"))
    after_user = pieces_of(renderer.tokenizer, ("system", "user"))[-1]
    before_user = whole[3].removeprefix(whole[5])
    around = {
        "system": (whole[0], whole[1].removesuffix(before_user)),
        "user": (before_user, after_user),
        "assistant": (whole[2].removeprefix(after_user), whole[5]),
    }
    for roles in (("system", "user"), ("system", "user", "assistant"), ("system", "assistant", "user", "assistant")):
        try:
            wanted = pieces_of(renderer.tokenizer, roles)
        except UserError:
            continue  # a template may want the user to speak first
        said = [around[roles[0]][0]]
        said += [around[one][1] + around[following][0] for one, following in pairwise(roles)]
        if wanted != [*said, around[roles[-1]][1]]:
            raise UserError(
                f"{renderer.name}: its chat template treats a message by its place, so it cannot be said in Ollama's "
                "language with certainty; serve it with vLLM"
            )
    opening = pieces_of(renderer.tokenizer, ("system", "user"), generation=True)[-1].removeprefix(after_user)
    return around, opening


def _needs(folder: Path, *names: str) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder}: lacks {', '.join(missing)}; it is no complete result of `esckit train`")
