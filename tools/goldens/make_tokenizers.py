"""Write tests/goldens/tokenizers/<case>/: small tokenizers with chat templates, and what transformers makes of them.

    HF_HUB_OFFLINE=1 python tools/goldens/make_tokenizers.py

expected.json of each folder: `encode` (text, ids with and without special tokens, decoded texts), `decode` (ids that
end inside a character), `chats` (arguments of apply_chat_template, text, ids or the error). See README.md.
"""

import io
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import sentencepiece
import tokenizer_texts as texts
import tokenizers
import transformers
from sample_texts import TEXTS
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, LlamaTokenizerFast, PreTrainedTokenizerFast

OUT = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "tokenizers"
SPECIALS = ["<|endoftext|>", "<|begin|>", "<|im_start|>", "<|im_end|>"]
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def train_bpe(style: str) -> Tokenizer:
    """Train a byte-level BPE of 400 tokens; style is smollm, llama3 or qwen2 (how the text is split first)."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=style == "llama3"))
    if style == "smollm":
        first = pre_tokenizers.Digits(individual_digits=True)
        second = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        first = pre_tokenizers.Split(Regex(LLAMA3_SPLIT if style == "llama3" else QWEN2_SPLIT), "isolated")
        second = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if style == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, second])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts.CORPUS, trainer)
    if style == "llama3":
        bos = ("<|begin|>", tokenizer.token_to_id("<|begin|>"))
        tokenizer.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing("<|begin|> $A", "<|begin|> $A <|begin|>:1 $B:1", [bos]),
            ]
        )
    return tokenizer


def write_bpe(folder: Path, style: str, **config: Any) -> None:
    """Write tokenizer.json and tokenizer_config.json (chat_template inside it when given)."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=train_bpe(style), eos_token="<|im_end|>", pad_token="<|endoftext|>", **config
    )
    wrapped.save_pretrained(folder, save_jinja_files=False)


def train_sentencepiece() -> bytes:
    """Return a SentencePiece BPE model of 380 pieces with byte fallback, as Llama 2 has it."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts.CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=380,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def write_sentencepiece(folder: Path, only_model: bool) -> None:
    """Write a Llama 2 style folder; only_model leaves out tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "add_eos_token": False,
        "legacy": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": texts.LLAMA2,
    }
    (folder / "tokenizer.model").write_bytes(train_sentencepiece())
    write_json(folder / "tokenizer_config.json", config)
    if not only_model:
        LlamaTokenizerFast.from_pretrained(folder).save_pretrained(folder, save_jinja_files=False)


def write_legacy(folder: Path) -> None:
    """Write the tokenizer.json that converters of transformers 4 made from Llama 2: Prepend and Replace normalizers."""
    tokenizer = LlamaTokenizerFast.from_pretrained(OUT / "sp_only").backend_tokenizer
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = None
    specials = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "clean_up_tokenization_spaces": False}
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=texts.LLAMA2, **specials)
    wrapped.save_pretrained(folder, save_jinja_files=False)


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write JSON with one line for each entry of a list."""
    lines = []
    for key, value in record.items():
        dump = json.dumps(value)
        if isinstance(value, list):
            dump = "[\n  " + ",\n  ".join(json.dumps(entry) for entry in value) + "\n ]"
        lines.append(f" {json.dumps(key)}: {dump}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def check_tokenizer_json(path: Path, records: list[dict[str, Any]]) -> None:
    """Demand that the file alone, read by the tokenizers library, gives the ids and texts of transformers."""
    alone = Tokenizer.from_file(str(path))
    for record in records:
        ids, plain = (alone.encode(record["text"], add_special_tokens=flag).ids for flag in (True, False))
        texts_of_ids = [alone.decode(ids, skip_special_tokens=flag) for flag in (False, True)]
        if [ids, plain, *texts_of_ids] != list(record.values())[1:]:
            raise AssertionError(f"{path}: other result for {record['text']!r}: {ids} {record['ids']} {texts_of_ids}")


def encode_records(tokenizer: Any) -> list[dict[str, Any]]:
    records = []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        records.append(
            {
                "text": text,
                "ids": ids,
                "ids_no_special": tokenizer(text, add_special_tokens=False)["input_ids"],
                "decoded": tokenizer.decode(ids),
                "decoded_skip_special": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    return records


def decode_records(tokenizer: Any) -> list[dict[str, Any]]:
    """Return every prefix of an emoji, a Chinese and a Latin text: what a streaming decoder meets."""
    ids = tokenizer("I 🙂 你 é\n", add_special_tokens=False)["input_ids"]
    prefixes = [ids[:length] for length in range(1, len(ids) + 1)]
    return [{"ids": prefix, "decoded": tokenizer.decode(prefix)} for prefix in prefixes]


def chat_record(tokenizer: Any, messages: texts.Conversation, **arguments: Any) -> dict[str, Any]:
    """Return the arguments with the text and ids, or with the error; today's date is stored as a format."""
    record: dict[str, Any] = {"messages": messages, "arguments": arguments}
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
    except jinja2.exceptions.TemplateError as error:
        return record | {"error": str(error)}
    today = datetime.now().strftime("%d %b %Y")
    if today in text:
        return record | {"text": text.replace(today, "@TODAY@"), "today_format": "%d %b %Y"}
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **arguments)
    if ids != tokenizer(text, add_special_tokens=False)["input_ids"]:
        raise AssertionError("apply_chat_template is not render + encode without special tokens")
    record |= {"text": text, "ids": ids}
    if "{%- generation" in str(tokenizer.chat_template):
        both = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True, **arguments)
        record["assistant_mask"] = both["assistant_masks"]
    return record


def write_expected(folder: Path, about: str, chats: list[tuple[texts.Conversation, dict[str, Any]]]) -> None:
    """Reload the folder as a user would, check that tokenizer.json needs nothing beside it, write expected.json."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    record = {
        "about": about,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "sentencepiece": sentencepiece.__version__,
        "jinja2": jinja2.__version__,
        "class": type(tokenizer).__name__,
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "encode": encode_records(tokenizer),
        "decode": decode_records(tokenizer),
        "chats": [chat_record(tokenizer, messages, **arguments) for messages, arguments in chats],
    }
    if (folder / "tokenizer.json").exists():
        check_tokenizer_json(folder / "tokenizer.json", record["encode"])
    write_json(folder / "expected.json", record)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder.name:18s} {size / 1000:6.1f} kB  {[path.name for path in sorted(folder.iterdir())]}")


def both_prompts(chats: list[texts.Conversation]) -> list[tuple[texts.Conversation, dict[str, Any]]]:
    return [(chat, {"add_generation_prompt": flag}) for chat in chats for flag in (True, False)]


def feature_chats() -> list[tuple[texts.Conversation, dict[str, Any]]]:
    """Return conversations for the template that uses everything transformers offers, errors included."""
    prompt = {"add_generation_prompt": True}
    twice = [texts.HELLO[0], texts.HELLO[0]]
    unknown = [{"role": "pirate", "content": "arr"}]
    return [
        (texts.HELLO, prompt),  # no date_string: strftime_now
        (texts.HELLO, prompt | texts.DATE),
        (texts.TURNS, prompt | texts.DATE | {"enable_thinking": False}),
        (texts.PARTS, texts.DATE | {"tools": texts.TOOLS}),
        (twice, prompt | texts.DATE),
        (unknown, prompt | texts.DATE),
    ]


def main() -> int:
    chats = both_prompts(texts.CHATS)
    write_bpe(OUT / "bpe_chatml", "smollm", chat_template=texts.CHATML)
    write_expected(OUT / "bpe_chatml", "ChatML in tokenizer_config.json; single digits; no BOS.", chats)

    write_bpe(OUT / "bpe_bos", "llama3", bos_token="<|begin|>", chat_template=texts.STARTS_WITH_BOS)
    about = "The template starts with BOS and the tokenizer adds BOS too: ids of a chat have exactly one."
    write_expected(OUT / "bpe_bos", about, chats)

    write_bpe(OUT / "bpe_two_templates", "qwen2", chat_template=texts.IN_CONFIG)
    (OUT / "bpe_two_templates" / "chat_template.jinja").write_text(texts.IN_FILE)
    about = "chat_template.jinja differs from the field in tokenizer_config.json; the file wins. NFC normalizer."
    write_expected(OUT / "bpe_two_templates", about, chats)

    write_bpe(OUT / "bpe_named", "qwen2", chat_template=texts.NAMED)
    about = "Two named templates in tokenizer_config.json: default, and tool_use which is taken when tools are given."
    write_expected(OUT / "bpe_named", about, [(texts.HELLO, {}), (texts.HELLO, {"tools": texts.TOOLS})])

    write_bpe(OUT / "bpe_features", "llama3", bos_token="<|begin|>", chat_template=texts.FEATURES)
    about = "raise_exception, strftime_now, continue/break, tojson, generation, namespace, macro; errors included."
    write_expected(OUT / "bpe_features", about, feature_chats())

    bad_order = [texts.TURNS[1], texts.TURNS[0]]
    write_sentencepiece(OUT / "sp_llama", only_model=False)
    about = "SentencePiece BPE with byte fallback, tokenizer.json beside tokenizer.model; [INST] template with BOS."
    write_expected(OUT / "sp_llama", about, [*chats, (bad_order, {})])

    write_sentencepiece(OUT / "sp_only", only_model=True)
    about = "The same without tokenizer.json: only tokenizer.model."
    write_expected(OUT / "sp_only", about, both_prompts([texts.SYSTEM]))

    write_legacy(OUT / "sp_legacy")
    about = "The same pieces with the tokenizer.json of old Llama 2 folders: a space is always put in front."
    write_expected(OUT / "sp_legacy", about, chats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
