"""Fine-tuning: a trained decoder with one extra linear layer for a task. `finetune` is the way through the package."""
