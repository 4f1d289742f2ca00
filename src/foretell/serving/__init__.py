"""An HTTP server with OpenAI's protocol, which maps requests to `inference/`, `generation/` and `insight/`."""
