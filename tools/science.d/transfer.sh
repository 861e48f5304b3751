# Multi30k en-de with knowledge from a pre-trained encoder, three seeds; target: mean >= 42.0, a small model alone >= 40.5
#
# Arms:
#   tuned    pre-trained encoder, translation of Tatoeba's pairs and Multi30k, then Multi30k alone
#   again    tuned once more, with the likeliest tokens of all `tuned` together
#   mean     the same, but from the mean of the `tuned`, a third as long
#   init     tuned without Tatoeba's pairs
#   alone    Transformer-Tiny
#   taught   the same with the likeliest tokens of the first `tuned`, which lives on another site of a laboratory; they are asked for
#            once a sentence
# `alone` and `taught` train for the time that `again` takes in all (encoder, teacher, both tunings). --minutes is that time.
arms=${arms:-tuned,again,alone,taught}
# shellcheck source=/dev/null
. "$home/tools/science.d/common-lower.sh"

tune() { # ARM SEED KEYS…
    local arm=$1 seed=$2 name=transfer/$1.$2
    shift 2
    train "$name" transfer-tune seed="$seed" "$@" && translation "$arm" "$seed" "$name"
}

alone() {
    train "transfer/alone.$1" transfer-student seed="$1" && translation alone "$1" "transfer/alone.$1"
}

taught() {
    laboratory "transfer/taught.$1" transfer-tutor $((7100 + $1)) seed="$1" distill.teacher="transfer/tuned.${seeds%%,*}" &&
        result taught "$1" bytes_per_row "$(sed -n 's/.* \([0-9.]*\) bytes .*row.*/\1/p' "transfer/taught.$1/boston/log" | tail -n 1)" &&
        translation taught "$1" "transfer/taught.$1/boston"
}

has() { case ,$arms, in *,$1,*) return 0 ;; esac; return 1; }

mkdir -p log/transfer
tokenizer transfer
make_lower
clock "text is lower-cased and tokenised"
[ -f cache/transfer/tokenizer.model ] || prepare transfer/encoder transfer-encoder || exit 1
if { has tuned || has init; } && [ ! -f transfer/encoder/model.safetensors ]; then
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
if has again || has mean; then
    all=$(for seed in $(list "$seeds"); do printf ',transfer/tuned.%s' "$seed"; done)
    all=${all#,}
    for seed in $(list "$seeds"); do
        [ -f "transfer/tuned.$seed/model.safetensors" ] || die "no transfer/tuned.$seed in $out: --arms tuned,again"
        if has again; then spawn tune again "$seed" distill.teacher="$all" train.lr=3e-4; fi
        if has mean; then
            spawn tune mean "$seed" init.from="$all" distill.teacher="$all" train.lr=1e-4 train.steps=400 train.warmup=40 train.save_every=20
        fi
    done
    join
fi
[ -z "$minutes" ] || keys=("train.minutes=$minutes" "${keys[@]}")
for arm in alone taught; do
    has $arm || continue
    for seed in $(list "$seeds"); do spawn $arm "$seed"; done
    join
done
# shellcheck disable=SC2046
scores $(list "$arms")
