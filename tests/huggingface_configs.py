"""Made-up ``config.json`` files of Hugging Face."""

__all__ = ["llama_like"]


def llama_like(kind: str, layers: int, hidden: int, ffn: int, heads: int, groups: int, vocab: int, **more) -> dict:
    return {
        "model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": ffn,
        "num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": vocab,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16", **more,
    }  # fmt: skip
