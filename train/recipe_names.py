"""Names that newer libraries no longer know: read, translated and told in one warning line each.

Recipes and habits outlive libraries. A name stays here as long as what it meant can still be said; where it cannot,
it is an error like any unknown key. Sources: the migration guide of transformers 5 (Trainer section) and the
what TRL has removed from `SFTConfig` up to 1.16.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from train.recipe_faults import RecipeFaults
from train.yaml_lines import Location


def same(value: Any) -> Any:
    return value


def share_of_steps(value: Any) -> float:
    """`warmup_steps` below 1 is a share of all steps; a share of 1 would be read as one step."""
    share = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    if not 0 <= share < 1:
        raise ValueError
    return share


def dtype_name(value: Any) -> Any:
    return value.removeprefix("torch.") if isinstance(value, str) else value


def when_true(meaning: Any) -> Callable[[Any], Any]:
    """A switch that became a value: `true` is that value, `false` is the default."""

    def convert(value: Any) -> Any:
        if not isinstance(value, bool):
            raise ValueError
        return meaning if value else None

    return convert


@dataclass(frozen=True)
class Renamed:
    """One removed name. `convert` gives the value under the new name, or None where the default says the same."""

    old: Location
    new: Location | None
    """None: the setting has no effect here, `why` says what holds instead."""
    why: str
    convert: Callable[[Any], Any] = same
    expected: str = ""
    """What `convert` takes, for the message when it does not."""


def _training(old: str, new: str | None, why: str, *more: Any) -> Renamed:
    return Renamed(("training", old), None if new is None else ("training", *new.split(".")), why, *more)


RENAMED = (
    _training("warmup_ratio", "warmup_steps", "below 1 it is a share of all steps", share_of_steps, "0 up to below 1"),
    _training("group_by_length", None, "batches are made by length unless data.order says otherwise"),
    _training("evaluation_strategy", "eval_strategy", "renamed in transformers 4.46"),
    _training("per_gpu_train_batch_size", "per_device_train_batch_size", "renamed in transformers 5"),
    _training("per_gpu_eval_batch_size", "per_device_eval_batch_size", "renamed in transformers 5"),
    _training("no_cuda", "use_cpu", "renamed in transformers 5"),
    _training("use_mps_device", None, "the device is found without it"),
    _training("include_tokens_per_second", "include_num_input_tokens_seen", "renamed in transformers 5"),
    _training(
        "include_inputs_for_metrics",
        "include_for_metrics",
        "a list in transformers 5",
        when_true(["inputs"]),
        "true or false",
    ),
    _training("push_to_hub_model_id", "hub_model_id", "renamed in transformers 5"),
    _training("adafactor", "optim", "an optimiser like others", when_true("adafactor"), "true or false"),
    _training("dispatch_batches", "accelerator_config.dispatch_batches", "moved by transformers"),
    _training("split_batches", "accelerator_config.split_batches", "moved by transformers"),
    _training("fsdp_min_num_params", "fsdp_config.min_num_params", "moved by transformers"),
    _training(
        "fsdp_transformer_layer_cls_to_wrap", "fsdp_config.transformer_layer_cls_to_wrap", "moved by transformers"
    ),
    _training("fp16_backend", None, "mixed precision is torch's own always"),
    _training("half_precision_backend", None, "mixed precision is torch's own always"),
    _training("fp16_opt_level", None, "mixed precision is torch's own always"),
    _training("save_safetensors", None, "weights are saved as safetensors always"),
    _training("overwrite_output_dir", None, "a folder that holds a run is never overwritten; --resume continues it"),
    _training("logging_dir", None, "the records of a run are kept in its result folder"),
    _training("past_index", None, "no model that is trained here has it"),
    _training("use_legacy_prediction_loop", None, "there is one evaluation loop only"),
    _training("use_liger", "use_liger_kernel", "renamed by TRL"),
    _training("dataset_batch_size", None, "the rows are prepared by the toolkit"),
    _training("num_of_sequences", None, "the rows are prepared by the toolkit"),
    _training("chars_per_token", None, "the rows are prepared by the toolkit"),
    Renamed(("training", "max_seq_length"), ("data", "max_length"), "one limit for training and evaluation"),
    Renamed(("data", "max_seq_length"), ("data", "max_length"), "renamed in TRL 0.16"),
    Renamed(("training", "torch_dtype"), ("model", "dtype"), "renamed in transformers 4.56", dtype_name),
    Renamed(("model", "torch_dtype"), ("model", "dtype"), "renamed in transformers 4.56", dtype_name),
    Renamed(
        ("model", "load_in_4bit"),
        ("model", "quantization"),
        "removed in transformers 5",
        when_true("4bit"),
        "true or false",
    ),
    Renamed(
        ("model", "use_flash_attention_2"),
        ("model", "attention"),
        "removed in transformers 5",
        when_true("flash_attention_2"),
        "true or false",
    ),
)


def translate(content: dict[str, Any], faults: RecipeFaults, override: Location | None = None) -> None:
    """Puts what removed names say where it is said now, in place, with one warning each.

    Old and new name together are a fault: they could mean two different things. Not so when `override`, the key that
    was just replaced on the command line, is the old name: an override wins over what the file says.
    """
    for entry in RENAMED:
        section, old = entry.old
        holder = content.get(str(section))
        if isinstance(holder, dict) and old in holder:
            _translate_one(content, holder.pop(old), entry, faults, override == entry.old)


def _translate_one(content: dict[str, Any], value: Any, entry: Renamed, faults: RecipeFaults, replaces: bool) -> None:
    name = ".".join(map(str, entry.old))
    if entry.new is None:
        faults.warn(entry.old, f"{name} does nothing any more: {entry.why}; leave it out")
        return
    new_name = ".".join(map(str, entry.new))
    try:
        converted = None if value is None else entry.convert(value)
    except ValueError:
        faults.add(entry.old, f"{name}: found {value!r:.60}, expected {entry.expected}; it is {new_name} now")
        return
    place = content
    for part in entry.new[:-1]:
        place = place.setdefault(str(part), {})
        if not isinstance(place, dict):
            faults.add(entry.old, f"{name} is {new_name} now, and {part} is no section to put it into; write it there")
            return
    key = str(entry.new[-1])
    if key in place and not replaces:
        faults.add(entry.old, f"{name} is the old name of {new_name}, which is set too; keep {new_name} only")
        return
    faults.warn(entry.old, f"{name} is {new_name} now ({entry.why}); read as {_read_as(key, converted)}")
    if converted is None:
        place.pop(key, None)
    else:
        place[key] = converted
        faults.moved(entry.old, entry.new)


def _read_as(key: str, value: Any) -> str:
    return f"the default {key}" if value is None else f"{key}: {value!r:.60}"
