"""InternLM2's tokenizer as a fast one, without its own code."""

from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.records import parse_json, read_text


def convert_tokenizer(folder: Path) -> Any:
    """The tokenizer as a fast one: from tokenizer.json, else from the SentencePiece model, special tokens kept.

    Raises UserError when neither is there.
    """
    from transformers import PreTrainedTokenizerFast

    settings_file = folder / "tokenizer_config.json"
    settings = parse_json(read_text(settings_file), str(settings_file)) if settings_file.is_file() else {}
    names = ("bos_token", "eos_token", "unk_token", "pad_token", "chat_template", "model_max_length")
    kept = {name: _token_text(settings[name]) for name in names if settings.get(name) is not None}
    if (folder / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **kept)
    model = folder / "tokenizer.model"
    if not model.is_file():
        raise UserError(f"{folder}: holds neither tokenizer.json nor tokenizer.model")
    specials = [(int(index), entry) for index, entry in (settings.get("added_tokens_decoder") or {}).items()]
    return PreTrainedTokenizerFast(tokenizer_object=_from_sentencepiece(model, specials), **kept)


def _token_text(value: Any) -> Any:
    return value["content"] if isinstance(value, dict) and "content" in value else value


def _from_sentencepiece(model: Path, specials: list[tuple[int, dict[str, Any]]]) -> Any:
    """A BPE tokenizer that cuts as the SentencePiece model does: spaces as ▁, unknown characters as bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers.convert_slow_tokenizer import SentencePieceExtractor

    extractor = SentencePieceExtractor(str(model))
    proto = extractor.proto
    if proto.trainer_spec.model_type != 2:
        raise UserError(f"{model}: is no BPE model, as InternLM2's is")
    extracted: Any = extractor.extract(models.BPE)  # a dict, whatever its annotation says
    vocabulary, merges = extracted["vocab"], extracted["merges"]
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            merges,
            unk_token=proto.pieces[proto.trainer_spec.unk_id].piece,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = [normalizers.Prepend("▁")] if proto.normalizer_spec.add_dummy_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    control = [piece.piece for piece in proto.pieces if piece.type in (2, 3)]
    listed = {entry["content"] for _, entry in specials}
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in control if text not in listed]
    )
    for index, entry in sorted(specials, key=lambda pair: pair[0]):
        token = AddedToken(entry["content"], special=bool(entry.get("special", True)), normalized=False)
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(entry["content"]) != index:
            raise UserError(
                f"{model}: token {entry['content']!r} is {index} by tokenizer_config.json, but has another place"
            )
    return tokenizer
