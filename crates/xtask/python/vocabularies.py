"""Small vocabularies of the kinds that checkpoints have, made with Hugging Face tokenizers, and the ids it gives for texts."""

import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind; it's 1234 times as quick as 56 others.",
    "A language model reads text and says what comes next. It's the text that matters, not the model!",
    "Größe, naïve café, déjà vu; Ελλάδα, Москва, 東京 and 東京都 are words too.\n\nNew lines\n\tand tabs    and spaces.",
] * 4

TEXTS = [
    "Hello, the quick brown café doesn't cost 123456 dollars!",
    "  two  spaces\n\nlines\tand tabs   ",
    "東京 and Москва <|end|> then ▁ 🙂 e\u0301 x",
    "We'll SAY it's 3.14, isn'T it?",
    "Hello world! Café déjà vu — 123 😊",
    "",
    " ",
    "\n",
]


def finish(tokenizer, folder, bos, eos):
    """Adds the special tokens, saves, and writes the ids of the texts: with and without those that frame a text."""
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<extra>", normalized=False)])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    tokenizer.save(os.path.join(folder, "tokenizer.json"), pretty=False)
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"bos_token": bos, "eos_token": eos, "chat_template": "{{ messages[0].content }}"}, f)
    texts = [[t, tokenizer.encode(t).ids, tokenizer.encode(t, add_special_tokens=False).ids] for t in TEXTS]
    with open(os.path.join(folder, "texts.json"), "w") as f:
        json.dump(texts, f, ensure_ascii=False)


def byte_level(folder, digits=r"\p{N}", bos=None, pairs=True):
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(CONTRACTION + WORDS + digits + REST), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    finish(tokenizer, folder, bos, "</s>")
    if not pairs:
        path = os.path.join(folder, "tokenizer.json")
        with open(path) as f:
            whole = json.load(f)
        whole["model"]["merges"] = [" ".join(pair) for pair in whole["model"]["merges"]]
        with open(path, "w") as f:
            json.dump(whole, f, ensure_ascii=False, separators=(",", ":"))


def sentence_pieces(folder, prefix, bos="<s>", lines=False):
    """Byte pairs over U+2581 with bytes to fall back on, as the converters from SentencePiece write them."""
    fallback = [f"<0x{b:02X}>" for b in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    replace = [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(([normalizers.Prepend("▁")] if prefix else []) + replace)
    if lines:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>", "<s>", "</s>"] + fallback, limit_alphabet=48, show_progress=False
    )
    pieces = [piece for text in CORPUS for piece in text.replace(" ", " \0").split("\0")]
    tokenizer.train_from_iterator(pieces, trainer)
    whole = json.loads(tokenizer.to_str())
    # Bytes are no special tokens of the text.
    whole["added_tokens"] = [t for t in whole["added_tokens"] if not t["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    finish(tokenizer, folder, bos, "</s>")


KINDS = {
    "qwen3": byte_level,
    "llama": lambda folder: byte_level(folder, digits=r"\p{N}{1,3}", bos="<s>", pairs=False),
    "gemma3": lambda folder: sentence_pieces(folder, prefix=False),
    "mistral": lambda folder: sentence_pieces(folder, prefix=True),
    "gemma4": lambda folder: sentence_pieces(folder, prefix=False, lines=True),
}
