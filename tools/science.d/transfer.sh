# Multi30k en-de with knowledge from a pre-trained encoder, three seeds; target: mean >= 42.0, a small model alone >= 40.5
#
# Arms: tuned (pre-trained encoder, translation of Tatoeba's pairs and Multi30k, then Multi30k alone), init (the same without
# Tatoeba's pairs), alone (Transformer-Tiny), taught (the same with the likeliest tokens of the first `tuned`), the last two for
# the same time. --minutes is that time.
arms=${arms:-tuned,alone,taught}

lower() {
    LC_ALL=C tr A-Z a-z | LC_ALL=C sed -f "$home/tools/science.d/tokenise.sed"
}

# A sentence a line of the novels; pairs side by side again.
make_text() {
    local l p
    mkdir -p lower
    for l in en de fr; do
        [ -f lower/eltec.$l.txt ] || { sed 's/\([.!?]\) \([A-Z]\)/\1\n\2/g' data/mono/eltec.$l.txt | lower > lower/eltec.$l.tmp &&
            mv lower/eltec.$l.tmp lower/eltec.$l.txt; } &
        [ -f lower/commonvoice.$l.txt ] || { lower < data/mono/commonvoice.$l.txt > lower/commonvoice.$l.tmp &&
            mv lower/commonvoice.$l.tmp lower/commonvoice.$l.txt; } &
    done
    for p in en-de en-fr de-fr; do
        [ -f lower/$p.tsv ] || { cut -f1 data/para/tatoeba.$p.tsv | lower > lower/$p.1 && cut -f2 data/para/tatoeba.$p.tsv | lower > lower/$p.2 &&
            paste lower/$p.1 lower/$p.2 > lower/$p.tmp && mv lower/$p.tmp lower/$p.tsv; } &
    done
    wait
}

tune() { # ARM SEED KEYS…
    local arm=$1 seed=$2 name=transfer/$1.$2
    shift 2
    train "$name" transfer-tune seed="$seed" "$@" && translation "$arm" "$seed" "$name"
}

learn() { # ARM SEED KEYS…
    local arm=$1 seed=$2 name=transfer/$1.$2
    shift 2
    train "$name" transfer-student seed="$seed" "$@" && translation "$arm" "$seed" "$name"
}

has() { case ,$arms, in *,$1,*) return 0 ;; esac; return 1; }

mkdir -p log/transfer
tokenizer transfer
make_text
clock "text is lower-cased and tokenised"
all_keys=("${keys[@]}")
if [ ! -f transfer/encoder/model.safetensors ]; then
    prepare transfer/encoder transfer-encoder && train transfer/encoder transfer-encoder || exit 1
fi
if has tuned && [ ! -f transfer/teacher/model.safetensors ]; then
    prepare transfer/teacher transfer-teacher && train transfer/teacher transfer-teacher || exit 1
fi
for seed in $(list "$seeds"); do
    if has tuned; then spawn tune tuned "$seed"; fi
    if has init; then spawn tune init "$seed" init.from=transfer/encoder model.decoder_layers=3 train.lr=7e-4 train.steps=2500; fi
done
join
[ -z "$minutes" ] || keys=("train.minutes=$minutes" "${all_keys[@]}")
teacher=transfer/tuned.${seeds%%,*}
for seed in $(list "$seeds"); do
    if has alone; then spawn learn alone "$seed"; fi
done
join
for seed in $(list "$seeds"); do
    if has taught; then spawn learn taught "$seed" distill.teacher="$teacher"; fi
done
join
# shellcheck disable=SC2046
scores $(list "$arms")
