#!/usr/bin/env python3
"""Records the scores of sacreBLEU for made-up translations, for tests/test_score.c.

Run with sacrebleu installed:  tools/record_scores.py > tests/data/scores.txt

Lines: `case NAME REFS`, then per sentence one `h ` line and REFS `r ` lines, then `s METRIC VALUE` lines.
"""
import random
import sacrebleu

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "In 2023, prices rose by 3.5 % to $1,299.99 (about 1.200,50 EUR).",
    "She said: \"We'll meet at 10:30 a.m. - or at 5-6 p.m.!\"",
    "Ein Mann mit Hut steht vor dem Café „Zur Post“ und liest 24-seitige Zeitungen.",
    "L'été dernier, j'ai vu l'œuvre de Müller à Besançon; c'était très beau…",
    "Der Zug fährt um 7.45 Uhr ab; er kommt – wenn alles gut geht – um 9.10 Uhr an.",
    "¿Dónde está la biblioteca? ¡Está cerrada desde el 1.º de mayo!",
    "Цена выросла на 12,5 % — до 1 000 ₽; никто не ожидал этого.",
    "他在北京大学学习了3年中文，然后去了上海。",
    "AT&amp;T &lt;b&gt;bold&lt;/b&gt; &quot;quoted&quot; <skipped> text/other_text [x] {y} ^z`",
    "ΟΔΥΣΣΕΥΣ και Ιθάκη: 10 χρόνια ταξίδι.",
    "İstanbul'da hava 25°C ve güneşli, ½ saat sonra yağmur.",
    "e-mail: someone@example.org, C++ vs. C#, 50€ + 20£ = ?",
    "Two men are at the stove preparing food .",
    "a young child is standing alone on some jagged rocks .",
    "No.",
    "Yes , 1,000,000 times yes ! 3-4 5- -6 7.-8",
    "مرحبا بالعالم، كيف حالك؟ ٣٫٥ كيلومتر",
    "a\u00a0non-breaking\u2009space and\ta tab",
]


def damage(rng, text, strength):
    words = text.split(" ")
    out = []
    for w in words:
        x = rng.random()
        if x < 0.3 * strength:
            continue
        if x < 0.5 * strength:
            out.append(rng.choice(words))
        if x < 0.7 * strength:
            w = w.lower() if rng.random() < 0.5 else w.rstrip(".,!?;:")
        out.append(w)
    if rng.random() < 0.3 * strength and len(out) > 2:
        i = rng.randrange(len(out) - 1)
        out[i], out[i + 1] = out[i + 1], out[i]
    return " ".join(out)


def scores(hyps, refs):
    for split in ("none", "13a", "intl", "zh", "char"):
        for lower in (False, True):
            b = sacrebleu.BLEU(tokenize=split, lowercase=lower, force=True)
            yield f"bleu-{split}{'-lc' if lower else ''}", b.corpus_score(hyps, refs).score
    for cased in (False, True):
        yield f"ter{'-cs' if cased else ''}", sacrebleu.TER(case_sensitive=cased).corpus_score(hyps, refs).score
    for words in (0, 2):
        for lower in (False, True):
            c = sacrebleu.CHRF(word_order=words, lowercase=lower)
            yield f"chrf{'++' if words else ''}{'-lc' if lower else ''}", c.corpus_score(hyps, refs).score


def show(name, hyps, refs):
    print(f"case {name} {len(refs)}")
    for i, h in enumerate(hyps):
        print("h " + h)
        for r in refs:
            print("r " + r[i])
    for metric, value in scores(hyps, refs):
        print(f"s {metric} {value:.6f}")


def main():
    rng = random.Random(4)
    for strength in (0.0, 0.1, 0.3, 0.6, 0.9):
        show(f"damaged-{strength}", [damage(rng, s, strength) for s in SENTENCES], [SENTENCES])
    show("two-references", [damage(rng, s, 0.4) for s in SENTENCES],
         [SENTENCES, [damage(rng, s, 0.3) for s in SENTENCES]])
    show("three-references", [damage(rng, s, 0.7) for s in SENTENCES],
         [[damage(rng, s, 0.2) for s in SENTENCES] for _ in range(3)])
    for i, s in enumerate(SENTENCES):
        show(f"sentence-{i}", [damage(rng, s, 0.4)], [[s]])
    show("nothing-right", ["x y z", "u v"], [["a b c d", "e f g"]])
    show("empty-hypothesis", ["", "the cat sat on the mat"], [["a dog", "the cat sat on a mat"]])
    show("short", ["a b c", "a b"], [["a b c", "a b"]])


main()
