"""The options of genie-t2t-run, those of its concurrent mode, and ours beside them."""

from __future__ import annotations

from edgewright.bench.case.words import Option

_EMBEDDING = "PATH[,TYPE,SCALE,OFFSET]"

STOCK = (
    Option(("-h", "--help"), None, "show this"),
    Option(("-c", "--config"), "FILE", "the first dialog's model: a Genie dialog configuration, or a bundle"),
    Option(("-p", "--prompt"), "TEXT", "its input: a text"),
    Option(("--prompt_file",), "FILE", "its input: the text of a file"),
    Option(("-tok", "--tokens_file"), "FILE", "its input: the token ids in a file, blanks between"),
    Option(("-e", "--embedding_file"), _EMBEDDING, "its input: rows of embeddings"),
    Option(("-t", "--embedding_table"), _EMBEDDING, "what turns generated tokens into embeddings, for all dialogs"),
    Option(("--embedding_query_output_type",), "text", "what is printed; token ids are in the records of a run"),
    Option(("--log",), "error|warn|info|verbose", "how much is told on stderr besides times"),
    Option(("--profile",), "FILE", "write the profile there; the file must not exist"),
    Option(("--priority",), "N", "priority of all dialogs (default: 100)"),
    Option(("--pid",), None, "print the process id"),
    Option(("-l", "--lora"), "ADAPTER", "a bundle has one set of weights: deploy the merged model", "refused"),
    Option(("-s", "--save"), "PATH", "from Python, LLM.save_prefix keeps what a session holds", "refused"),
    Option(("-r", "--restore"), "PATH", "from Python, LLM.load_prefix goes on with it", "refused"),
    Option(("-w", "--rewind"), "TEXT", "a case file's `reset: never` goes on in the same dialog instead", "refused"),
    Option(("--action",), "NAME", "end early with --max-tokens, or with timeout_s in a case file", "refused"),
    Option(("--sleep",), "MS", "begin later with start_ms in a case file", "refused"),
    Option(("--key",), "TEXT", "a bundle needs no key: leave it out", "refused"),
    Option(("--engine_role",), "ROLE", "a bundle has one engine: leave it out", "refused"),
    Option(("--allow_engine_switch",), "ROLE,FILE", "a bundle has one engine: leave it out", "refused"),
    Option(("--add_example_sampler",), None, "say how tokens are drawn with sampling in a case file", "refused"),
)
CONCURRENT = (
    Option(("--concurrent",), None, "several dialogs at once"),
    Option(("--concurrent-config",), "FILE", "the model of one more dialog; each has one input", "each"),
    Option(("--concurrent-embed",), _EMBEDDING, "an input: rows of embeddings", "each"),
    Option(("--concurrent-prompt",), "TEXT", "an input: a text", "each"),
    Option(("--concurrent-prompt_file",), "FILE", "an input: the text of a file", "each"),
    Option(("--concurrent-tokens_file",), "FILE", "an input: the token ids in a file", "each"),
    Option(("--concurrent-stride",), "W,W,...", "a weight for each dialog, the larger the more turns; 0 pauses"),
    Option(("--concurrent-priorities",), "P,P,...", "a priority for each dialog, the larger goes first"),
    Option(("--iterations",), "N", "how often each dialog is asked (default: 1)"),
)
OURS = (
    Option(("--models",), "FILE", "registry of models: which bundle stands for a Genie configuration"),
    Option(("--runner",), "WORDS", "run genie-t2t-run itself: the words before its options, such as 'adb shell ./t2t'"),
    Option(("-o", "--output"), "FOLDER", "run folders are FOLDER/genie-t2t-run/ID (default: runs)"),
    Option(("--run-id",), "ID", "the run folder's name (default: date and time)"),
    Option(("--overwrite",), None, "replace a run folder and a profile that exist"),
    Option(("--max-tokens",), "N", "most tokens of an answer (default: what the Genie configuration says)"),
    Option(("--requantize",), "round|legacy-truncate", "how a table's codes become the input's (default: round)"),
    Option(("--threads",), "N", "cores to use (default: the physical ones)"),
    Option(("--quiet",), None, "no progress or notes on stderr"),
    Option(("--debug",), None, "print the traceback of an error"),
)
ALL = (*STOCK, *CONCURRENT, *OURS)
#: Options whose words an external program gets as they are.
PASSED = ("--log", "--embedding_query_output_type", "--pid")
#: What a second dialog can be asked with, and what the first one's option for it is.
INPUTS = {
    "--concurrent-embed": "--embedding_file",
    "--concurrent-prompt": "--prompt",
    "--concurrent-prompt_file": "--prompt_file",
    "--concurrent-tokens_file": "--tokens_file",
}
