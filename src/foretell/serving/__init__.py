"""An HTTP server with OpenAI's protocol: it translates between requests and `inference/`, `generation/`, `insight/`."""
