"""Text in, answers out: next tokens, score and embedding (`query`), and completions (`completion`)."""
