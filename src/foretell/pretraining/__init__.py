"""The text task: from a text to a trained language model. Start reading at `TextTraining`."""
