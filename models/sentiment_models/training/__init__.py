"""Training, pre-training and distillation, which survive kill -9."""
