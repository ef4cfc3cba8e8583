"""What is wrong with how a dialog is asked: kind of input, files, encodings, sizes, the context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from edgewright.bench.case.facts import Facts, kind_of_costs, prompt_tokens
from edgewright.bench.case.inputs import read_text, read_token_ids
from edgewright.bench.case.problems import Problems
from edgewright.bench.case.spec import DialogSpec, ModelSpec
from edgewright.errors import UsageError
from edgewright.runtime.encoding import EmbeddingFile, Requantizer
from edgewright.runtime.npz import read_npz
from edgewright.runtime.rawtable import RawRows, RawTable
from edgewright.runtime.sampling import SamplingParams

#: What of a dialog has no meaning for a policy.
_TEXT_ONLY = ("max_tokens", "sampling", "stop", "ignore_eos", "raw", "reset", "requantize")


def dialog_problems(dialog: DialogSpec, model: ModelSpec, facts: Facts | None, need_files: bool) -> list[str]:
    """Return a sentence for each thing that is wrong; `facts` None says that nothing is known of the model."""
    found = Problems()
    for text in _kind_problems(dialog, model, facts):
        found.add("", text)
    if dialog.period_ms is not None and dialog.think_ms:
        found.add("", "period_ms and think_ms both say when the next iteration begins: keep one.")
    with found.noted(""):
        SamplingParams(**dialog.sampling)
    tokens = dialog.input.prompt_tokens
    if model.simulated is None:
        embedding = dialog.input.embedding
        if embedding is not None:
            with found.noted(""):
                tokens = _embedding_rows(embedding, dialog, model, facts, need_files)
        elif need_files:
            with found.noted(""):
                tokens = _text_tokens(dialog, model, facts)
        if embedding is not None and isinstance(model.table, EmbeddingFile) and need_files:
            with found.noted(""):
                _check_table(model.table, facts)
    if facts is not None and facts.context is not None and tokens is not None:
        for text in _context_problems(dialog, tokens, facts.context):
            found.add("", text)
    return [problem.text for problem in found.found]


def _kind_problems(dialog: DialogSpec, model: ModelSpec, facts: Facts | None) -> Iterator[str]:
    """Yield what the kind of model doesn't take."""
    given = [field.name for field in fields(dialog.input) if getattr(dialog.input, field.name) is not None]
    if len(given) > 1:
        yield f"{' and '.join(given)} both say what it is asked: keep one of them."
    simulated = model.simulated is not None
    kind = None if facts is None else facts.kind
    if model.simulated is not None:  # known even where its costs can't be
        kind = kind_of_costs(model.simulated)
    if simulated and (real := [name for name in given if name != "prompt_tokens"]):
        yield f"its model is simulated, so {' and '.join(real)} can't be read by it: give prompt_tokens."
    elif not simulated and "prompt_tokens" in given:
        yield "prompt_tokens is for simulated models: give prompt, prompt_file, tokens_file or embedding."
    if kind == "policy":
        wrong = [name for name in given if name != "observation"] if not simulated else given
        usual = DialogSpec(name=dialog.name, model=dialog.model, input=dialog.input)
        wrong += [name for name in _TEXT_ONLY if getattr(dialog, name) != getattr(usual, name)]
        if wrong:
            yield f"its model is a robot policy, which has no use for {' and '.join(wrong)}: leave them out."
        return
    if kind == "llm" and "observation" in given:
        yield "its model is a language model, which takes no observation: give a prompt, token ids or embeddings."
    if not given and kind == "llm":
        what = "prompt_tokens" if simulated else "prompt, prompt_file, tokens_file or embedding"
        yield f"it has no input: give {what}, in the dialog or as the model's usual one."
    if simulated and dialog.max_tokens is None:
        yield "its model is simulated, so it has no end of its own: give max_tokens."


def _embedding_rows(
    embedding: EmbeddingFile, dialog: DialogSpec, model: ModelSpec, facts: Facts | None, need_files: bool
) -> int | None:
    """Return the rows of a dialog's embeddings; raises what is wrong with them."""
    if isinstance(model.table, EmbeddingFile):
        Requantizer(model.table.encoding, embedding.encoding, mode=dialog.requantize)
    if facts is None or not need_files or facts.kind != "llm":
        return None
    if facts.width is None:
        raise UsageError(
            "it is fed with embeddings, and its bundle looks them up inside: deploy with --embeddings outside."
        )
    return len(RawRows(embedding.path, embedding.encoding, facts.width))


def _check_table(table: EmbeddingFile, facts: Facts | None) -> None:
    """Raise what is wrong with a table's file."""
    if facts is None or facts.width is None or facts.rows is None:
        return
    rows = RawTable(table.path, table.encoding, facts.width).vocab
    if rows < facts.rows:
        raise UsageError(
            f"the table {table.path} has {rows} rows and the model generates tokens up to {facts.rows - 1}: give the "
            "table of this model."
        )


def _text_tokens(dialog: DialogSpec, model: ModelSpec, facts: Facts | None) -> int | None:
    """Return the number of tokens of a text or of a file of ids, None where it isn't known; raises what is wrong."""
    asked = dialog.input
    if asked.observation is not None and (facts is None or facts.kind == "policy"):
        read_npz(asked.observation)  # which says why it can't be
    text = asked.prompt if asked.prompt_file is None else read_text(asked.prompt_file)
    if text == "":
        raise UsageError(f"{asked.prompt_file or 'prompt'} is empty, and no dialog can be asked nothing: write a text.")
    if asked.tokens_file is not None:
        ids = read_token_ids(asked.tokens_file)
        if facts is not None and facts.rows is not None and max(ids) >= facts.rows:
            raise UsageError(
                f"{asked.tokens_file} has the token {max(ids)}, and the model's last one is {facts.rows - 1}."
            )
        return len(ids)
    if text is None or model.bundle is None or facts is None or facts.kind != "llm":
        return None
    return prompt_tokens(model.bundle, text, raw=dialog.raw)


def _context_problems(dialog: DialogSpec, tokens: int, context: int) -> Iterator[str]:
    """Yield what doesn't fit; the last token that is generated is not fed and needs no room."""
    more = (dialog.max_tokens or 1) - 1
    if tokens > context:
        yield f"its prompt has {tokens} tokens, and the model's context holds {context}: shorten it."
    elif tokens + more > context:
        yield (
            f"its prompt of {tokens} tokens and max_tokens {dialog.max_tokens} need more than the model's context of "
            f"{context}: {context - tokens + 1} can be generated."
        )
