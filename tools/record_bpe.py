#!/usr/bin/env python3
"""Records the results of transformers' GPT2Tokenizer for byte-level BPE (needs transformers).

    python3 tools/record_bpe.py tests/data/bpe

This trains a small vocabulary on the texts below and writes vocab.json, merges.txt and cases.json. The cases are texts with the ids
that GPT2Tokenizer gives them, and ids (also cut in the middle of a character) with its text for them. tests/test_bpe.c compares.
"""
import json
import os
import random
import sys

from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog.", "It's what they've said: we'll see, I'd think, you're right, I'm sure.",
    "IT'S, THEY'VE, we'LL and 'tis; don't 's 't 're alone'", "Hello,world!Hello , world !  Two  spaces   three    four",
    "  leading and trailing  ", "tabs\tand\nnew lines\n\n\nthree\r\nand returns \n x", " ", "  ", "\n", " \n ", "\t\tx", "a\u00a0b\u2003c\u3000d \u00a0e",
    "\u0085next line\u2028separator\u200bzero width", "\x1cfile\x1dgroup\x1erecord\x1funit",
    "Numbers: 1 12 123 1234567890, 3.14 and ½ ⅷ ² ١٢٣ 四", "abc123def 9lives R2D2 v1.0.3",
    "Größe, Straße, über, naïve café, Æsir, œuvre, ñandú, ¿qué?, ¡hola!", "e\u0301 combining, n\u0303, Z\u0351\u036b\u0343\u036a\u0302 zalgo",
    "Привет, мир! Как дела?", "Γειά σου Κόσμε", "こんにちは世界。日本語のテキスト", "你好，世界！这是一个测试。", "안녕하세요 세계", "مرحبا بالعالم، كيف حالك؟",
    "नमस्ते दुनिया", "สวัสดีชาวโลก", "שלום עולם", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𠀀", "😀 emoji 👩‍👩‍👧‍👦 family 🇩🇪 flag 👍🏽 tone ❤️ heart", "mixed😀text🚀 rockets🚀🚀🚀",
    "http://example.org/a?b=c&d=%20#frag user@host.tld", "if (x != y) { return a[i++] << 2; } // code\n\tfor (;;) {}", "a=b+c; \"quotes\" 'single' `back`",
    "<s> </s> [MASK] <pad> <2de>", "----====____....", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "abababababababababababababababababababababababababababababababababababababababababababababababababababab", "x" * 300 + " " * 70 + "y",
    "\ufeffbyte order mark", "\ufffd replacement", "\x00\x01\x7f\x80 control", "soft\u00adhyphen", "’s ’t curly don’t", "",
]


def random_text(rng):
    pools = ["abc def ", "  \t\n", "äöüß", "'stremvld ", "0123456789", "!?.,;:-", "你好世界", "😀🚀👍", "Привет ", "\u00a0\u2003"]
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 60)))


def main(folder):
    os.makedirs(folder, exist_ok=True)
    train = ByteLevelBPETokenizer()
    train.train_from_iterator([t for t in TEXTS for _ in range(2)], vocab_size=900, min_frequency=2, special_tokens=["<|endoftext|>"],
                              show_progress=False)
    train.save_model(folder)
    tok = GPT2Tokenizer.from_pretrained(folder)
    rng = random.Random(5)
    encode = [{"text": t, "ids": tok.encode(t)} for t in TEXTS + [random_text(rng) for _ in range(200)]]
    decode = []
    for case in encode[::3]:
        n = len(case["ids"])
        cut = case["ids"][rng.randint(0, n):] if n and rng.random() < 0.5 else case["ids"][:rng.randint(0, n)]
        decode.append(cut)
    decode += [[rng.randrange(tok.vocab_size) for _ in range(rng.randint(1, 30))] for _ in range(60)]
    decode = [{"ids": i, "text": tok.decode(i, skip_special_tokens=True, clean_up_tokenization_spaces=False)} for i in decode]
    with open(os.path.join(folder, "cases.json"), "w") as f:
        f.write('{"encode": [\n' + ",\n".join(map(json.dumps, encode)) + '\n], "decode": [\n' + ",\n".join(map(json.dumps, decode)) + "\n]}\n")
    print(f"{tok.vocab_size} pieces, {len(encode)} texts, {len(decode)} decodings")


if __name__ == "__main__":
    main(sys.argv[1])
