"""A small SentencePiece model with the conventions of PaliGemma's, and the same tokens as a Hugging Face folder."""

import io
from pathlib import Path
from typing import Any

import sentencepiece

VOCAB_SIZE = 420
SENTENCES = """pick up the red cup and put it on the blue plate
put the black bowl in the top drawer of the cabinet
open the middle drawer, then close the bottom drawer
turn on the stove and put the frying pan on it
stack the small block on the large block; leave the green block alone
wipe the table with the sponge, from left to right
Task: fold the towel, State: 127 128 255 0 64 -1 200;
Action: move the arm to the left of the box
Task: open the door, State: 12 3 45 67 89 101 213 254;
Action: hold the handle and pull
hand the screwdriver to the person who asks for it
insert the peg into the hole without touching the rim
pour the water from the bottle into the glass on the tray
unplug the cable of the router, wait, then plug it in again
sort the apples: ripe ones to the basket, the others to the crate"""


def train_tokenizer(folder: Path) -> Path:
    """Write paligemma_tokenizer.model and tokenizer.model (the same bytes) to `folder`; returns the first."""
    folder.mkdir(parents=True, exist_ok=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES.split("\n")),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCAB_SIZE,
        character_coverage=1.0,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        unk_piece="<unk>",
        user_defined_symbols=["<mask>", "\n", "\n\n", "▁▁", "▁▁▁", "<loc0000>", "<loc0001>", "<seg000>"],
        num_threads=1,
        minloglevel=2,
    )
    for name in ("paligemma_tokenizer.model", "tokenizer.model"):
        (folder / name).write_bytes(model.getvalue())
    return folder / "paligemma_tokenizer.model"


def hugging_face_tokenizer(folder: Path) -> Any:
    """Return transformers' Gemma tokenizer made of tokenizer.model in `folder`, as google/paligemma-3b-pt-224 is.

    It puts <bos> before every text and no <eos> behind it.
    """
    from tokenizers.processors import TemplateProcessing
    from transformers import GemmaTokenizer

    tokenizer = GemmaTokenizer.from_pretrained(folder)
    tokenizer.init_kwargs.pop("vocab_file", None)
    bos = ("<bos>", tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[bos])
    return tokenizer
