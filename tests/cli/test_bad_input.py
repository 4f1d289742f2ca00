"""Bad input: one line with what, where and what to do; the right exit code; nothing written, nothing lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

TOY = ["train", "CORPUS", "--size", "toy", "--kind", "bytes", "--steps", "1", "--out", "unmade"]
# arguments (RUN, CORPUS and made files by name), exit code, words that the one line must contain
TABLE = [
    # the command line itself
    (["trian", "CORPUS"], 2, ["trian", "train"]),
    (["train", "CORPUS", "--sed", "3"], 2, ["--sed", "--seed"]),
    (["train", "CORPUS", "--seed", "x"], 2, ["--seed", "x"]),
    (["train", "CORPUS", "--resume", "maybe"], 2, ["--resume", "maybe"]),
    (["next", "RUN"], 2, ["TEXT", "--file"]),
    (["next"], 2, ["MODEL"]),
    (["next", "RUN", "-x"], 2, ["-x", "--"]),
    (["generate", "RUN", "The", "--temperature", "warm"], 2, ["--temperature", "warm"]),
    (["generate", "RUN", "The", "--device", "tpu"], 2, ["tpu"]),
    (["generate", "RUN", "The", "--device", "cuda"], 2, ["cuda", "cpu"]),
    (["embed", "RUN", "The", "--pool", "max"], 2, ["max"]),
    (["tokenizer"], 0, []),
    (["tokenizer", "train", "CORPUS"], 2, ["--out"]),
    (["tokenizer", "train", "CORPUS", "--kind", "bpee", "--out", "t"], 2, ["bpee"]),
    (["tokenizer", "train", "CORPUS", "--kind", "characters", "--vocab-size", "9", "--out", "t"], 2, ["vocab"]),
    (
        ["tokenizer", "train", "CORPUS", "--kind", "bytes", "--vocab-size", "9", "--out", "t"],
        2,
        ["leave vocab_size out", "not bytes"],
    ),
    (["tokenizer", "train", "CORPUS", "--vocab-size", "100", "--out", "t"], 1, ["257"]),
    (["tokenizer", "train", "missing.txt", "--out", "t"], 1, ["missing.txt"]),
    (["tokenizer", "train", "two  spaces.txt", "--out", "t"], 1, ["two  spaces.txt"]),
    (["tokenizer", "train", "CORPUS", "--kind", "bytes", "--out", "RUN/run.json"], 1, ["run.json"]),
    # configuration
    (["train", "CORPUS", "--model.widht", "32", "--size", "toy", "--steps", "1"], 2, ["widht", "width"]),
    (["train", "CORPUS", "--model.width", "wide", "--size", "toy", "--steps", "1"], 2, ["width", "wide"]),
    (["train", "CORPUS", "--model.num-heads", "3", "--size", "toy", "--steps", "1"], 2, ["64", "3"]),
    (["train", "CORPUS", "--model.width", "0", "--size", "toy", "--steps", "1"], 2, ["width", "0"]),
    (["train", "CORPUS", "--model.width"], 2, ["--model.width", "value"]),
    (["train", "CORPUS", "--model.dropout", "2", "--size", "toy", "--steps", "1"], 2, ["dropout"]),
    (["train", "CORPUS", "--model.position", "rotari", "--size", "toy", "--steps", "1"], 2, ["rotari", "rotary"]),
    (["train", "CORPUS", "--model.window", "[1]", "--size", "toy", "--steps", "1"], 2, ["window", "2 layers"]),
    (["train", "CORPUS", "--training.n_layer", "3"], 2, ["'training.num_layers'; it is model.num_layers"]),
    (["train", "CORPUS", "--trainning.steps", "3"], 2, ["trainning", "training"]),
    (["train", "CORPUS", "--set", "trainning.steps=3"], 2, ["trainning", "training"]),
    (["train", "CORPUS", "--size", "tinny", "--steps", "1"], 2, ["tinny", "tiny"]),
    (["train", "CORPUS", "--steps", "0"], 2, ["steps", "0"]),
    (["train", "CORPUS", "--steps", "-3"], 2, ["steps", "-3"]),
    (["train", "CORPUS", "--minutes", "0"], 2, ["minutes", "0"]),
    (["train", "CORPUS", "--minutes", "-1"], 2, ["minutes", "-1"]),
    (["train", "CORPUS", "--minutes", "1", "--steps", "3"], 2, ["minutes", "steps"]),
    (["train", "CORPUS", "--training.learning-rate", "-1", "--steps", "1"], 2, ["learning_rate", "-1"]),
    (
        [
            "train",
            "CORPUS",
            "--training.batch-size",
            "6",
            "--training.gradient-accumulation-steps",
            "4",
            "--steps",
            "1",
        ],
        2,
        ["6", "4"],
    ),
    (["train", "CORPUS", "--training.optimizer", "muom", "--steps", "1"], 2, ["optimizer", "muom", "muon"]),
    (["train", "CORPUS", "--training.patience", "0", "--steps", "1"], 2, ["patience", "0"]),
    (["train", "CORPUS", "--training.label-smoothing", "1", "--steps", "1"], 2, ["label_smoothing", "1"]),
    ([*TOY, "--training.weight-decay-by-path", '{"emed.**" = 0}'], 2, ["weight_decay_by_path", "emed.**"]),
    ([*TOY, "--training.weight-decay-by-path", '{"embed.**" = -1}'], 2, ["weight_decay_by_path", "-1"]),
    ([*TOY, "--sample-prompt", "x" * 200], 2, ["sample prompt", "200"]),
    ([*TOY, "--sample-prompt", ""], 2, ["sample prompt", "0 tokens"]),
    (["train", "CORPUS", "--checkpoint-every", "0", "--steps", "1"], 2, ["checkpoint_every", "0"]),
    (["train", "CORPUS", "--kind", "bpee", "--steps", "1"], 2, ["bpee", "bpe"]),
    (["train", "CORPUS", "--config", "missing.toml"], 2, ["missing.toml"]),
    (["train", "CORPUS", "--config", "bad.toml"], 2, ["bad.toml"]),
    (["train", "CORPUS", "--config", "deep.toml"], 2, ["deep.toml", "nested too deeply"]),
    (["train", "CORPUS", "--config", "digits.toml"], 2, ["digits.toml", "too many digits"]),
    (["train", "CORPUS", "--training.batch-size", "[" * 3000], 2, ["training.batch_size", "integer"]),
    (["train", "CORPUS", "--model.width", "9" * 5000], 2, ["model.width", "integer"]),
    (["train", "CORPUS", "--seed", "9" * 5000], 2, ["--seed", "is not an integer"]),
    (["train", "CORPUS", "--config", "unknown.toml"], 2, ["modle", "model"]),
    (["train", "CORPUS", "--set", "steps=5"], 2, ["--set: steps = 5", "write training.steps = 5"]),
    (["train", "CORPUS", "--steps", "5", "--steps", "6"], 2, ["--steps is given twice"]),
    (["train", "CORPUS", "--set", "model"], 2, ["model"]),
    (["train", "CORPUS", "--training.learning-rate", "inf", "--steps", "1"], 2, ["learning_rate", "inf"]),
    (["train", "CORPUS", "--seed", "18446744073709551616", "--steps", "1"], 2, ["seed"]),
    (["train", "CORPUS", "--kind", "bytes", "--tokenizer", "letters.json", "--steps", "1"], 2, ["--kind"]),
    (["train", "RUN/tokens", "--kind", "bytes", "--steps", "1"], 2, ["tokens"]),
    (["train", "CORPUS", "--size", "toy", "--model.vocab-size", "5", "--steps", "1"], 2, ["vocab_size", "5"]),
    (["next", "oddconfig@last", "The"], 1, ["oddconfig", "last"]),
    # data
    (["train", "missing.txt"], 1, ["missing.txt"]),
    (["train", "empty.txt"], 1, ["empty.txt", "empty"]),
    (["train", "repeated.txt", "--steps", "1"], 1, ["--kind bytes", "4,500"]),
    (["finetune", "missing", "blank.txt", "--task", "classify", "--minutes", "0"], 2, ["minutes must be a positive"]),
    (["finetune", "blank.txt", "--task", "foo"], 2, ["unknown task 'foo'", "classify", "chat", "text"]),
    (["train", "blank.txt"], 1, ["blank.txt"]),
    (["train", "binary.txt"], 1, ["binary.txt", "binary"]),
    (["train", "latin1.txt"], 1, ["latin1.txt", "UTF-8"]),
    (["train", "short.txt", "--size", "toy", "--kind", "bytes", "--steps", "1"], 1, ["context", "text"]),
    (["train", "emptyfolder"], 1, ["emptyfolder"]),
    (["train", ""], 2, ["a path is empty; give a file"]),
    # standard output
    (["explain", "RUN", "The", "--html", "-"], 2, ["--html", "cannot be written to standard output"]),
    (["trace", "RUN", "The", "--out", "-"], 2, ["--out", "cannot be written to standard output"]),
    (["trace", "RUN", "The", "--out=-"], 2, ["--out", "cannot be written to standard output"]),
    (["convert", "RUN", "-", "--to", "gguf"], 2, ["cannot be written to standard output"]),
    (["train", "CORPUS", "--out", "-", "--steps", "1"], 2, ["--out", "cannot be written to standard output"]),
    (["tokenizer", "train", "CORPUS", "--out", "-"], 2, ["--out", "cannot be written to standard output"]),
    (["forecast", "almanac", "CORPUS", "--plot", "-"], 2, ["--plot", "cannot be written to standard output"]),
    (["predict", "RUN", "twolabels.csv", "--out", "-"], 2, ["--out", "cannot be written to standard output"]),
    (["runs", "RUN", "--png", "-"], 2, ["--png", "cannot be written to standard output"]),
    (["train", "broken.jsonl"], 1, ["broken.jsonl", "line 2"]),
    (["train", "nofield.jsonl"], 1, ["nofield.jsonl", "body"]),
    (["train", "nofield.jsonl", "--workers", "0"], 2, ["workers", "1 to 256"]),
    (["train", "broken.parquet"], 1, ["broken.parquet", "damaged"]),
    (["train", "number.parquet"], 1, ["number.parquet", "row 1", "a number", "string"]),
    (["train", "number.parquet", "--text-field", "txt"], 1, ["number.parquet", "'txt'", "'text'"]),
    (["train", "twocolumns.csv"], 1, ["twocolumns.csv", "title", "body"]),
    (["train", "CORPUS", "--text-field", "txt", "twocolumns.csv"], 1, ["txt"]),
    (["train", "CORPUS", "--text-field", "text"], 1, ["CORPUS", "'text'", ".jsonl"]),
    (["evaluate", "RUN", "CORPUS", "--text-field", "text"], 1, ["CORPUS", "'text'", ".jsonl"]),
    # rows and special tokens
    ([*TOY, "--rows", "--model.context-length", "16"], 1, ["CORPUS, line", "48 tokens", "--model.context-length 47"]),
    ([*TOY, "--rows", "--data.document-mask", "true"], 2, ["rows", "document_mask"]),
    ([*TOY, "--rows", "--data.window-length", "9"], 2, ["rows", "window_length"]),
    ([*TOY, "--data.window-length", "65"], 2, ["window_length 65", "64"]),
    ([*TOY, "--prompt-field", "q"], 2, ["prompt_field", "answer_field", "both"]),
    ([*TOY, "--loss-on", "answer"], 2, ["loss_on", "answer_field"]),
    ([*TOY, "--data.separator", ":"], 2, ["separator", "answer_field"]),
    ([*TOY, "--prompt-field", "q", "--answer-field", "a"], 1, ["CORPUS", "'q'", ".csv"]),
    (["train", "twocolumns.csv", "--prompt-field", "titel", "--answer-field", "body"], 1, ["title", "--prompt-field"]),
    (["train", "noanswer.csv", "--prompt-field", "q", "--answer-field", "a"], 1, ["line 3", "answer is empty"]),
    ([*TOY, "--special", " "], 1, ["special token", "empty"]),
    ([*TOY, "--special", "a"], 1, ["'a'", "ordinary token"]),
    (
        [*TOY[:2], "--start-from", "RUN", "--special", "<|endotext|>", "--steps", "1"],
        1,
        ["<|endotext|>", "<|endoftext|>"],
    ),
    ([*TOY[:2], "--start-from", "RUN", "--start-token", "<s>", "--steps", "1"], 1, ["<s>", "<|endoftext|>"]),
    (["train", "CORPUS", "--start-from", "almanac"], 2, ["almanac is a forecaster"]),
    (["train", "RUN/tokens", "--rows", "--steps", "1", "--out", "unmade"], 1, ["joined", "from the texts"]),
    (["tokenizer", "train", "CORPUS", "--kind", "bytes", "--special", "a", "--out", "t"], 1, ["'a'", "ordinary"]),
    (["score", "RUN", "The", "--start-token", "<s>"], 1, ["<s>", "<|endoftext|>"]),
    (["next", "RUN", "84 999", "--ids"], 1, ["'999' is not a token id; the ids are 0 to 256"]),
    (["trace", "RUN", "The", "--select", "zzz", "--out", "t.safetensors"], 2, ["'zzz'", "--list` shows all names"]),
    (["score", "RUN", "84 104", "--ids", "--allow-special"], 2, ["--ids", "special"]),
    # tokenizers
    (["train", "CORPUS", "--tokenizer", "missing.json"], 1, ["missing.json"]),
    (["train", "CORPUS", "--tokenizer", "bad.json"], 1, ["bad.json"]),
    (["train", "emoji.txt", "--tokenizer", "letters.json", "--size", "toy", "--steps", "1"], 1, ["U+1F600"]),
    (["tokenize", "bad.json", "text"], 1, ["bad.json"]),
    (["tokenize", "short.txt", "text"], 1, ["short.txt", "not a tokenizer", "tokenizer.json"]),
    (["tokenize", "letters.json", "é"], 1, ["U+00E9"]),
    # two values for one setting
    (
        ["train", "CORPUS", "--lr", "1", "--training.learning-rate", "2"],
        2,
        ["training.learning-rate", "two values, 1 and 2"],
    ),
    (["train", "CORPUS", "--lr", "nan"], 2, ["training.learning_rate = nan: input should be a finite number"]),
    (["train", "CORPUS", "--batch-size", "4", "--batch-size=8"], 2, ["training.batch-size", "4 and 8"]),
    (["train", "CORPUS", "--steps", "1", "--training.steps", "2"], 2, ["training.steps", "2 and 1"]),
    (["train", "CORPUS", "--model.n-layer", "2", "--model.num-layers", "3"], 2, ["n_layer = 2 and num_layers = 3"]),
    (["train", "CORPUS", "--training.max-iters", "2", "--steps", "3"], 2, ["max_iters = 2 and steps = 3"]),
    # plans
    (
        ["plan", "--size", "gpt2", "--gpu", "h100", "--tokens", "9", "--training.steps", "3"],
        2,
        ["tokens and training.steps"],
    ),
    (
        ["plan", "--size", "gpt2", "--parallel", "ddp", "--training.parallel", "fsdp"],
        2,
        ["training.parallel", "fsdp and ddp"],
    ),
    (["plan", "--size", "gpt2", "--gpus", "99"], 2, ["gpus 99", "as gpu"]),
    (
        ["plan", "--size", "gpt2", "--gpu", "l4", "--only", "generating", "--tokens", "9"],
        2,
        ["generating only", "tokens"],
    ),
    (
        ["plan", "--size", "gpt2", "--gpu", "l4", "--only", "training", "--context", "9"],
        2,
        ["training only", "context"],
    ),
    (["plan"], 2, ["--size"]),
    (["plan", "--size", "gpt2", "--gpu", "h100", "--gpus", "9999999"], 2, ["at most 1,000,000"]),
    (["plan", "--size", "gpt2-xxl", "--gpu", "h100"], 2, ["gpt2-xxl", "gpt2-xl"]),
    (["plan", "--size", "gpt2", "--gpu", "h10"], 2, ["gpu 'h10'", "h100"]),
    (["plan", "--size", "gpt2", "--gpu", "h100", "--gpus", "0"], 2, ["gpus 0", "1 or more"]),
    (["plan", "--size", "gpt2", "--gpu", "h100", "--tokens", "0"], 2, ["tokens 0"]),
    (["plan", "--size", "gpt2", "--gpu", "h100", "--tokens", "nan"], 2, ["tokens nan"]),
    (["plan", "--size", "gpt2", "--gpu", "h100", "--context", "2000"], 2, ["context 2000", "1,024"]),
    (["plan", "--size", "gpt2", "--gpu", "h100", "--model.widht", "64"], 2, ["widht", "width"]),
    (["plan", "--size", "gpt2", "--gpu", "h100", "--data.rows", "true"], 2, ["'data'", "known: model, training"]),
    (["plan", "--size", "gpt2", "--gpu", "h100", "--model=3"], 2, ["--model"]),
    (["plan", "--size", "gpt2", "--gpu", "h100", "--gpus", "8", "--training.batch-size", "4"], 2, ["4 rows", "8"]),
    (["plan", "--size", "gpt3-13b", "--gpu", "h100"], 2, ["h100 memory is 80.0 GB", "--parallel fsdp"]),
    (["plan", "--size", "gpt3-175b", "--gpu", "h100", "--only", "generating"], 2, ["349 GB", "do not fit", "80.0 GB"]),
    # where to write
    (["train", "CORPUS", "--out", "RUN", "--steps", "1"], 1, ["exists", "--resume auto"]),
    (["train", "CORPUS", "--out", "CORPUS", "--steps", "1"], 1, ["the command reads CORPUS"]),
    (["train", "CORPUS", "--out", "CORPUS/x", "--steps", "1"], 1, ["CORPUS/x", "--out"]),
    (["train", "CORPUS", "--out", "/proc/x", "--steps", "1"], 1, ["/proc/x", "--out"]),
    (["train", "CORPUS", "--out", "NEW", "--training.optimizer", '["muon"]'], 2, ["training.optimizer"]),
    (["train", "--out", "nowhere", "--resume", "auto"], 2, ["nowhere", "not a run", "give the data"]),
    (["train", "--resume", "auto"], 2, ["--resume auto", "--out runs/NAME"]),
    ([*TOY, "--training.frozen", '["embed.tokn.weight"]'], 2, ["training.frozen", "near it: embed.token.weight"]),
    ([*TOY, "--training.frozen", '["**"]'], 2, ["training.frozen", "leaves no weight to train"]),
    ([*TOY, "--training.min-learning-rate", "6e-5"], 2, ["final_learning_rate_share", "6e-05", "share"]),
    ([*TOY, "--training.min-lr", "6e-5"], 2, ["min_lr = 6e-05", "learning_rate"]),
    (["train", "CORPUS", "--config", "nanogpt.toml", "--steps", "1"], 2, ["batch_size = 480", "grad_clip"]),
    (["train", "--out", "RUN", "--resume", "auto", "--training.learning-rate", "1"], 2, ["learning_rate", "--out"]),
    (["train", "--out", "RUN", "--resume", "auto", "--size", "tiny"], 2, ["size = toy", "tiny"]),
    (["train", "--out", "RUN", "--resume", "auto", "--steps", "13"], 2, ["finished after 12 steps", "--steps 1 --out"]),
    # models
    (["next", "primmer", "The"], 1, ["primmer", "primer"]),
    (["next", "runs/none", "The"], 1, ["runs/none"]),
    (["next", "CORPUS", "The"], 1, ["CORPUS"]),
    (["next", "emptyfolder", "The"], 1, ["emptyfolder"]),
    (["next", "RUN@step-99", "The"], 1, ["has the steps 0 to 12, not 99"]),
    (["runs", "RUN@step-5"], 2, ["is a checkpoint, and a run is needed; leave out @step-5"]),
    (["explain", "RUN@last", "--step", "1"], 2, ["leave out @last"]),
    (["runs", "none@step-5"], 1, ["no run 'none@step-5'"]),
    (
        ["explain", "atlas", "The capital of Spain is", "--contributions", "--against", "Zork"],
        2,
        ["'Zork'", "vocabulary"],
    ),
    (["explain", "atlas", "Spain", "--contributions", "--token", "is", "--against", "is"], 2, ["token itself, 'is'"]),
    (["next", "RUN@lats", "The"], 1, ["lats", "last"]),
    (["next", "x" * 5000, "The"], 1, ["no model"]),
    (["next", "nul\0name", "The"], 1, ["no model"]),
    (["info", "RUN", "--machine"], 2, ["--machine"]),
    (["info", "truncated"], 1, ["model.safetensors"]),
    (["info", "noweights"], 1, ["model.safetensors", "missing"]),
    (["info", "othermodel"], 1, ["model_type", "gpt3", "gpt2"]),
    (["info", "badconfig"], 1, ["config.json"]),
    (["info", "oddconfig"], 1, ["wdith", "width"]),
    (["info", "misshaped", "--names"], 1, ["feedforward", "shape"]),
    (["info", "othertokenizer"], 1, ["embed.token.weight", "shape"]),
    # chat
    (["chat", "primmer"], 1, ["primmer", "primer"]),
    (["chat", "RUN", "--template", "loop.jinja"], 1, ["loop.jinja", "loops too often"]),
    (["chat", "RUN", "--template", "escape.jinja"], 1, ["escape.jinja", "__class__"]),
    (["chat", "almanac"], 2, ["almanac does not read messages", "foretell forecast almanac DATA"]),
    (["chat", "RUN", "--max-tokens", "0"], 2, ["max_tokens", "0"]),
    (["finetune", "--task", "chat"], 2, ["MODEL", "--resume auto"]),
    (["finetune", "RUN", "missing.json", "--task", "chat"], 1, ["missing.json"]),
    (["finetune", "RUN", "role.jsonl", "--task", "chat"], 1, ["role.jsonl", "line 2", "'tool'"]),
    (["finetune", "RUN", "silent.jsonl", "--task", "chat"], 1, ["silent.jsonl", "line 1", "empty"]),
    (["finetune", "RUN", "nofield.jsonl", "--task", "chat"], 1, ["nofield.jsonl", "line 1", "question"]),
    (
        ["finetune", "RUN", "long.jsonl", "--task", "chat", "--truncate", "never"],
        1,
        ["long.jsonl", "context of 32", "--truncate"],
    ),
    (["finetune", "RUN", "long.jsonl", "--task", "chat", "--epochs", "0"], 2, ["epochs", "0"]),
    (["finetune", "RUN", "long.jsonl", "--task", "chat", "--model.width", "9"], 2, ["model.width", "dropout"]),
    (["finetune", "RUN", "long.jsonl", "--task", "chat", "--template", "loop.jinja"], 1, ["loops too often"]),
    # runs
    (["runs", "nonesuch"], 1, ["nonesuch"]),
    (["runs", "RUN", "nonesuch"], 1, ["nonesuch"]),
    (["runs", "CORPUS"], 1, ["CORPUS"]),
    (["runs", *["RUN"] * 9], 2, ["9", "8"]),
    (["runs", "RUN", "--png", "no/such/folder.png"], 1, ["no/such/folder.png"]),
    # other layouts
    (["convert", "RUN", "out", "--to", "onnx"], 2, ["onnx", "int8", "huggingface"]),
    (["convert", "RUN", "RUN", "--to", "huggingface"], 1, ["exists; give another name"]),
    (["convert", "RUN", "out", "--to", "huggingface", "--family", "lama"], 2, ["lama", "llama"]),
    (["convert", "RUN", "out", "--to", "huggingface", "--family", "gpt2"], 2, ["gpt2", "position", "qwen3"]),
    (["convert", "RUN", "out", "--to", "huggingface", "--dtype", "int8"], 2, ["int8"]),
    (["convert", "RUN", "out", "--dtype", "int8"], 2, ["int8", "bfloat16"]),
    (["convert", "RUN", "CORPUS/out", "--to", "huggingface"], 1, ["CORPUS/out"]),
    (["train", "CORPUS", "--exportable", "gpt2", "--steps", "1"], 2, ["gpt2", "position", "qwen3"]),
    (["train", "CORPUS", "--exportable", "gtp2", "--steps", "1"], 2, ["gtp2", "gpt2"]),
    (["train", "CORPUS", "--exportable", "qwen3", "--model.window", "5", "--steps", "1"], 2, ["qwen3", "window"]),
    # questions
    (["next", "RUN", ""], 2, ["empty"]),
    (["next", "RUN", "The", "--top", "0"], 2, ["top", "0"]),
    (["evaluate", "RUN", "CORPUS", "--limit", "1.5"], 2, ["limit", "not an integer"]),
    (["next", "RUN", "The", "--at", "3"], 2, ["3", "0 to 2"]),
    (["next", "RUN", "The", "--at", "1", "--every"], 2, ["--at", "--every"]),
    (["next", "RUN", "x" * 33], 1, ["33", "32"]),
    (["score", "RUN", ""], 2, ["empty"]),
    (["score", "RUN", "The", "cat"], 2, ["too many arguments: 'cat'", "score --help"]),
    (["score", "RUN", "x" * 33], 1, ["33", "32"]),
    (["embed", "RUN", ""], 2, ["empty"]),
    (["embed", "RUN", "--file", "longline.txt"], 1, ["line 1: 40 tokens", "32"]),
    (["next", "RUN", "The", "--file", "latin1.txt"], 2, ["TEXT", "--file", "exclude"]),
    (["generate", "RUN", "The", "--file", "latin1.txt"], 2, ["PROMPT", "--file", "exclude"]),
    (["score", "RUN", "--file", "latin1.txt"], 1, ["latin1.txt", "UTF-8"]),
    (["score", "RUN", "--file", "missing.txt"], 1, ["--file: missing.txt: no such file"]),
    (["score", "acme/tiny", "The"], 1, ["acme/tiny", "hub:acme/tiny"]),
    (["embed", "RUN", "--file", "latin1.txt"], 1, ["latin1.txt", "UTF-8"]),
    (["generate", "RUN", "The", "--prompt-file", "latin1.txt"], 2, ["PROMPT", "--prompt-file", "exclude"]),
    (["generate", "RUN", "--prompt-file", "missing.txt"], 1, ["--prompt-file: missing.txt: no such file"]),
    (["generate", "RUN", "--prompt-file", "latin1.txt"], 1, ["latin1.txt", "UTF-8"]),
    (["generate", "RUN", "The", "--out", "CORPUS"], 1, ["could not write", "it exists"]),
    (["generate", "RUN", "The", "--out", "nowhere/o.jsonl"], 1, ["could not write", "no folder nowhere"]),
    (["generate", "RUN", "The", "--progress"], 2, ["--progress counts prompts"]),
    (["generate", "RUN", "The", "--speculate", "0"], 2, ["speculate must be 1 token or more, not 0"]),
    (
        ["generate", "RUN", "The", "--draft", "primer"],
        2,
        ["the draft model primer has another tokenizer (1,024 tokens)"],
    ),
    (["generate", "RUN", "The", "--draft", "missing"], 1, ["missing"]),
    (["generate", "RUN", "x" * 33], 1, ["33", "32", "--slide"]),
    (["generate", "RUN", "--prompt-file", "longline.txt", "--n", "2"], 1, ["line 1: the prompt has 40 tokens"]),
    (["generate", "RUN", "The", "--max-tokens", "31"], 1, ["32", "--max-tokens 30"]),
    (["generate", "RUN", "The", "--temperature", "-0.5"], 2, ["temperature", "-0.5"]),
    (["generate", "RUN", "The", "--temperature", "nan"], 2, ["temperature", "nan"]),
    (["generate", "RUN", "The", "--top-k", "0"], 2, ["top_k", "0"]),
    (["generate", "RUN", "The", "--top-p", "1.5"], 2, ["top_p", "1.5"]),
    (["generate", "RUN", "The", "--top-p", "0"], 2, ["top_p", "0"]),
    (["generate", "RUN", "The", "--min-p", "2"], 2, ["min_p", "2"]),
    (["generate", "RUN", "The", "--repetition-penalty", "0"], 2, ["repetition_penalty", "0"]),
    (["generate", "RUN", "The", "--seed", "-1"], 2, ["seed", "-1"]),
    (["generate", "RUN", "The", "--n", "0"], 2, ["n must be a whole number", "0"]),
    (["generate", "RUN", "The", "--n", "two"], 2, ["--n", "two"]),
    (["generate", "RUN", "The", "--n", "1000000"], 2, ["n must be 10,000 or less, not 1,000,000"]),
    (["generate", "RUN", "The", "--logit-bias", "the"], 2, ["--logit-bias", "TOKEN=NUMBER", "'the'"]),
    (["generate", "RUN", "The", "--logit-bias", "5"], 2, ["TOKEN=NUMBER", "not '5'"]),
    (["generate", "RUN", "The", "--logit-bias", "e=much"], 2, ["--logit-bias", "e=much"]),
    (["generate", "RUN", "The", "--logit-bias", "e=nan"], 2, ["logit_bias", "nan"]),
    (["generate", "RUN", "The", "--logit-bias", "the=1"], 2, ["'the' is 3", "'t', 'h', 'e'", "give one token"]),
    (
        ["generate", "RUN", "The", "--logit-bias", "mat sat=1"],
        2,
        ["is 7 tokens of this model: 'm', 'a', 't', ' ', 's', 'a', 't'; give one token"],
    ),
    (["generate", "RUN", "The", "--logit-bias", "#999=1"], 1, ["999", "0 to 256"]),
    (["generate", "RUN", "The", "--ban", ""], 2, ["the value of --ban is empty"]),
    (["generate", "RUN", "The", "--no-repeat-ngram", "0"], 2, ["no_repeat_ngram", "0"]),
    (["generate", "RUN", "The", "--min-tokens", "-1"], 2, ["min_tokens", "-1"]),
    (["train", "-", "--task", "forecast"], 2, ["from files", "standard input"]),
    (["train", "-", "--task", "translate"], 2, ["from files", "standard input"]),
    (["finetune", "RUN", "-"], 2, ["from files", "standard input"]),
    (["generate", "RUN", "The", "--regex", r"\d("], 2, [r"regex '\d('"]),
    (["generate", "RUN", "The", "--regex", ""], 2, ["the value of --regex is empty"]),
    (["generate", "RUN", "4 5", "--ids", "--regex", "4"], 1, ["regex", "byte-level or character tokenizer"]),
    (["generate", "RUN", "The", "--json-schema", "missing.json"], 1, ["--json-schema: missing.json: no such file"]),
    (["generate", "RUN", "The", "--json-schema", "onelabel.csv"], 1, ["--json-schema onelabel.csv", "not JSON"]),
    (["generate", "RUN", "The", "--json-schema", "latin1.txt"], 1, ["--json-schema: latin1.txt", "UTF-8"]),
    (["generate", "RUN", "The", "--json-schema", "list.json"], 1, ["list.json", "a schema is an object"]),
    (["generate", "RUN", "The", "--json-schema", "empty.json"], 2, ["JSON schema", "Unsatisfiable"]),
    (["generate", "RUN", "The", "--json-schema", "true.json", "--regex", "1"], 2, ["regex and json_schema exclude"]),
    (["generate", "RUN", "The", "--min-tokens", "9", "--max-tokens", "3"], 2, ["min_tokens 9", "3 tokens"]),
    (["generate", "RUN", "The", "--no-repeat-ngram", "1", "--logit-bias", "x=1,5"], 2, ["--logit-bias", "x=1,5"]),
    # before the model is looked for
    (["chat", "nomodel", "--template", "chatlm"], 2, ["chatlm", "chatml"]),
    (["serve", "nomodel", "--template", "chatlm"], 2, ["chatlm"]),
    (["finetune", "nomodel", "long.jsonl", "--task", "chat", "--template", "chatlm"], 2, ["chatlm"]),
    (["next", "nomodel", "The", "--top", "0"], 2, ["top must be a whole number", "0"]),
    (["generate", "nomodel", "The", "--n", "0"], 2, ["n must be a whole number", "0"]),
    (["generate", "nomodel", "The", "--max-tokens", "-1"], 2, ["--max-tokens", "-1 is less than 0"]),
    (["generate", "nomodel", "The", "--stop", ""], 2, ["the value of --stop is empty"]),
    (["generate", "nomodel", "The", "--regex", "("], 2, ["regex '('", "unclosed group"]),
    (
        ["predict", "nomodel", "onelabel.csv", "--out", "x.parquet"],
        2,
        ["--out x.parquet", "ends in .csv, .tsv, .jsonl"],
    ),
    (["forecast", "nomodel", "nofile.csv"], 1, ["nofile.csv: no such file"]),
    (["evaluate", "almanac", "nofile.csv"], 1, ["nofile.csv: no such file"]),
    (["evaluate", "almanac", "onelabel.csv", "--test", "nofile.csv"], 1, ["nofile.csv: no such file"]),
    (["trace", "nomodel", "The", "--out", "nodir/t.safetensors"], 1, ["could not write", "no folder nodir"]),
    (["next", "gpt2", "The"], 1, ["gpt2 is a preset, a shape without weights", "hub:openai-community/gpt2"]),
    (["next", "gpt3-175b", "The"], 1, ["gpt3-175b is a preset, a shape without weights"]),
    # fine-tuning
    (["finetune", "RUN"], 2, ["MODEL and DATA"]),
    (["finetune", "RUN", "onelabel.csv", "--task", "clasify"], 2, ["clasify", "classify"]),
    (["finetune", "RUN", "missing.csv"], 1, ["missing.csv", "no such file"]),
    (["finetune", "nomodel", "twolabels.csv"], 1, ["nomodel"]),
    (["finetune", "RUN", "onelabel.csv"], 1, ["onelabel.csv: every row has the label 'x'"]),
    (["finetune", "RUN", "emptytext.csv"], 1, ["emptytext.csv, line 3", "empty"]),
    (["finetune", "RUN", "nolabel.csv"], 1, ["nolabel.csv, line 3", "label", "empty"]),
    (["finetune", "RUN", "samecolumns.csv"], 1, ["2 columns are called 'text'"]),
    (
        ["finetune", "RUN", "twocolumns.csv"],
        1,
        ["which column holds the label", "'title', 'body'", "--columns text,label"],
    ),
    (["finetune", "RUN", "twolabels.csv", "--text-column", "txt"], 1, ["'txt'", "did you mean 'text'"]),
    (["finetune", "RUN", "latin1.csv"], 1, ["latin1.csv, line 2", "--encoding cp1252"]),
    (["explain", "RUN", "a", "--value", "update:embed.token.weight[0,0]", "--step", "1"], 2, ["--step", "--value"]),
    (["explain", "RUN", "--value", "embed[0,0]", "--step", "1"], 2, ["update:PATH[i,j]"]),
    (["explain", "RUN", "a", "--value", "update:head.weight[0,0]"], 2, ["add --step N"]),
    (
        ["explain", "RUN", "--value", "update:embed.token.weight[0,0]", "--step", "999"],
        1,
        ["has the updates 1 to 12, not 999"],
    ),
    (["finetune", "RUN", "manylabels.csv"], 1, ["10,000 different labels", "--label-column"]),
    (["finetune", "RUN", "nan.csv", "--task", "regress"], 1, ["nan.csv, line 3", "'nan'", "finite"]),
    (
        ["finetune", "RUN", "longtexts.csv", "--truncate", "never"],
        1,
        ["4 of 8 examples", "context of 32", "--truncate"],
    ),
    (["finetune", "RUN", "twolabels.csv", "--task", "entailment"], 1, ["which two columns"]),
    (["finetune", "RUN", "twolabels.csv", "--training.steps", "0"], 2, ["steps", "0"]),
    (["finetune", "RUN", "twolabels.csv", "--training.step", "3"], 2, ["step", "steps"]),
    (["finetune", "RUN", "twolabels.csv", "--model.width", "3"], 2, ["model", "training and lora"]),
    (["finetune", "RUN", "twolabels.csv", "--lm-weight", "-1"], 2, ["lm_weight", "-1"]),
    (["finetune", "RUN", "twolabels.csv", "--epochs", "0"], 2, ["epochs", "0"]),
    (["finetune", "RUN", "twolabels.csv", "--dev-fraction", "0.9"], 2, ["dev_fraction", "0.9"]),
    (["finetune", "RUN", "twolabels.csv", "--out", "RUN"], 1, ["exists", "--resume auto"]),
    (["finetune", "RUN", "twolabels.csv", "--dev", "newlabel.csv"], 1, ["newlabel.csv, line 3", "'z'", "x, y"]),
    (["finetune", "RUN", "twolabels.csv", "--lora", "4"], 2, ["--lora takes no value", "--lora.rank 4"]),
    (["finetune", "RUN", "twolabels.csv", "--lora=4"], 2, ["--lora takes no value", "--lora.rank 4"]),
    (["finetune", "RUN", "long.jsonl", "--task", "chat", "--lora", "4"], 2, ["--lora takes no value"]),
    (["finetune", "--resume", "auto"], 2, ["--out runs/NAME"]),
    (["finetune", "--resume", "auto", "--out", "RUN"], 2, ["RUN", "was not trained by `foretell finetune`"]),
    (["predict", "RUN", "The cat"], 2, ["no task head", "finetune"]),
    (["quantize", "RUN", "a b", "--to", "int8"], 2, ["foretell convert", "'a b' --to int8"]),
    (["convert", "missing", "out", "--to", "int8"], 1, ["missing"]),
    (["convert", "RUN", "out", "--to", "int4", "--group", "24"], 2, ["width of 16", "groups of 24", "2, 4, 8, 16"]),
    (["convert", "RUN", "out", "--to", "int4", "--group", "0"], 2, ["group", "1"]),
    (["convert", "RUN", "out", "--to", "int8", "--keep", "**.attn"], 2, ["**.attn"]),
    (["convert", "RUN", "out", "--to", "int8", "--calibrate", "CORPUS"], 2, ["int4", "--calibrate"]),
    (["convert", "RUN", "out", "--to", "int4", "--calibrate", "missing.txt"], 1, ["missing.txt"]),
    (["convert", "RUN", "out", "--to", "int8", "--text", "empty.txt"], 1, ["empty.txt"]),
    (["generate", "RUN", "The", "--quantize", "int3"], 2, ["int3"]),
    (["predict", "RUN", "The cat", "--out", "x.csv"], 2, ["--out", "FILE"]),
    (["predict", "RUN"], 2, ["TEXT", "FILE"]),
    (["predict", "RUN", "./emptyfolder"], 2, ["./emptyfolder is a folder", "file"]),
    (["translate", "RUN", "./emptyfolder"], 2, ["./emptyfolder is a folder", "file"]),
    (["translate", "RUN", "twolabels.csv"], 2, ["twolabels.csv is a table", "one per line"]),
    (["translate", "RUN", "--file", "broken.parquet"], 2, ["broken.parquet is a table", "one per line"]),
    (["explain", "RUN", "The cat", "--prediction"], 2, ["no task head"]),
    (["explain", "RUN", "The cat", "--label", "x"], 2, ["--label goes with --prediction"]),
    (["explain", "RUN", "The cat", "--pieces"], 2, ["--pieces goes with --prediction"]),
    (["trace", "RUN", "The cat", "--out", "x.safetensors", "--as-task"], 2, ["no task head"]),
]
SCHEMAS = {"list.json": "[1]", "empty.json": '{"enum": []}', "true.json": '{"type": "boolean"}'}
TABLES = {
    "onelabel.csv": "a,x\nb,x\n",
    "twolabels.csv": "a,x\nb,y\n" * 4,
    "newlabel.csv": "a,x\nb,z\n",
    "emptytext.csv": "a,x\n ,y\n",
    "nolabel.csv": "a,x\nb,\n",
    "manylabels.csv": "".join(f"a,id{index}\n" for index in range(10_000)),
    "nan.csv": "a,1\nb,nan\n",
    "longtexts.csv": f"{'word ' * 30},x\nb,y\n" * 4,
}


@pytest.fixture
def made_files(tmp_path, trained):
    """Files and models with something wrong in each."""
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "repeated.txt").write_text("a" * 5000)
    (tmp_path / "longline.txt").write_text(f"{'a' * 40}\nfine\n")
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "latin1.txt").write_bytes("caf\xe9 au lait\n".encode("latin-1") * 50)
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "emoji.txt").write_text("abc \U0001f600 " * 200, encoding="utf-8")
    (tmp_path / "emptyfolder").mkdir()
    (tmp_path / "broken.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    (tmp_path / "broken.parquet").write_text("PAR1 and more")
    parquet.write_table(pyarrow.table({"text": [1, 2]}), tmp_path / "number.parquet")
    (tmp_path / "nofield.jsonl").write_text('{"body": "fine"}\n')
    (tmp_path / "role.jsonl").write_text('{"prompt": "p", "completion": "c"}\n{"messages": [{"role": "tool"}]}\n')
    (tmp_path / "silent.jsonl").write_text('{"prompt": "p", "completion": ""}\n')
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "p", "completion": "c" * 99}) + "\n")
    loop = "{% for a in range(99999) %}"
    (tmp_path / "loop.jinja").write_text(loop * 3 + "{% endfor %}" * 3)
    (tmp_path / "escape.jinja").write_text("{{ messages.__class__.__mro__ }}")
    (tmp_path / "twocolumns.csv").write_text("title,body\na,b\n")
    (tmp_path / "noanswer.csv").write_text("q,a\nWho?,A cat.\nWhat?, \n")
    for name, content in SCHEMAS.items():
        (tmp_path / name).write_text(content)
    for name, rows in TABLES.items():
        (tmp_path / name).write_text(f"text,label\n{rows}")
    (tmp_path / "samecolumns.csv").write_text("text,text,label\na,b,x\n")
    (tmp_path / "latin1.csv").write_bytes("text,label\ncaf\xe9,x\n".encode("latin-1"))
    (tmp_path / "bad.toml").write_text("[model\n")
    (tmp_path / "unknown.toml").write_text("[modle]\nwidth = 3\n")
    (tmp_path / "deep.toml").write_text(f"training.steps = {'[' * 3000}\n")
    (tmp_path / "digits.toml").write_text(f"training.steps = {'9' * 5000}\n")
    nanogpt = "[training]\nbatch_size = 12\ngradient_accumulation_steps = 40\ngrad_clip = 1.0\n"
    (tmp_path / "nanogpt.toml").write_text(nanogpt)
    (tmp_path / "bad.json").write_text('{"version": "1.0", "model": ')
    make_letters(tmp_path / "letters.json")
    for name, spoil in SPOILED.items():
        shutil.copytree(trained / "checkpoints" / "step-000012", tmp_path / name)
        for file in ("manifest.json", "training.json", "optimizer.safetensors"):  # would notice any of this
            (tmp_path / name / file).unlink()
        spoil(tmp_path / name)
    return tmp_path


def make_letters(path: Path) -> None:
    from foretell.text import train_tokenizer

    train_tokenizer("characters", ["abcdefghijklmnopqrstuvwxyz "]).save(path)


def change_config(**changes):
    def spoil(model: Path) -> None:
        values = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(values | changes))

    return spoil


def truncate_weights(model: Path) -> None:
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[: len(content) // 2])


SPOILED = {
    "truncated": truncate_weights,
    "noweights": lambda model: (model / "model.safetensors").unlink(),
    "othermodel": change_config(model_type="gpt3"),
    "badconfig": lambda model: (model / "config.json").write_text("{"),
    "oddconfig": change_config(wdith=3),
    "misshaped": change_config(feedforward_width=77),
    "othertokenizer": change_config(vocab_size=100),
}


def listing(folder: Path) -> dict[str, float]:
    """Every file below a folder with its time of change."""
    return {str(path): path.stat().st_mtime for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("arguments", "code", "words"), TABLE, ids=lambda value: str(value)[:60])
def test_bad_input_gets_one_line_and_changes_nothing(foretell, made_files, trained, corpus, arguments, code, words):
    names = {"RUN": str(trained), "CORPUS": str(corpus)}
    replaced = [
        argument.replace("RUN", names["RUN"]).replace("CORPUS", names["CORPUS"]) for argument in map(str, arguments)
    ]
    before = listing(made_files) | listing(trained)
    outcome = foretell(*replaced)
    assert outcome.code == code, outcome.err
    for word in words:
        assert names.get(word, word).replace("CORPUS", names["CORPUS"]) in outcome.last_line
    assert "Traceback" not in outcome.err
    if code:
        assert outcome.out == ""
        assert outcome.last_line.startswith("foretell: ")
    assert listing(made_files) | listing(trained) == before
