"""Files: safe writing, manifests, safetensors."""
