"""Models of other programs: Hugging Face directories in and out, GGUF files out, downloads from the Hub.

family.py              the form of a family's table: fields, rows, and the three transforms of weights
gpt.py, llama.py       the tables: GPT-1 and GPT-2; Llama, Mistral, Qwen2 and Qwen3
families.py            the families by name, and which one can express a model
config_json.py         a config.json to a `ModelConfig` and back, by a table
weights.py             weights to their names and shapes and back, by a table
huggingface.py         load a Hugging Face directory
hub.py                 `hub:owner/name[@revision]` to a local directory
parity.py              compare an export, read back by independent code, with the model
export.py              write a Hugging Face directory; the table of export formats
gguf/                  write a GGUF file
"""
