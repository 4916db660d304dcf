"""Extractive question answering: from SQuAD-like files to a fine-tuned folder that answers questions."""
