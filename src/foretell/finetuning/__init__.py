"""Fine-tuning: a trained decoder with one extra linear layer for a task. Start reading with `finetune`."""
