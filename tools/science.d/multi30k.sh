# Multi30k en-de from scratch: Transformer-Tiny, three seeds; target: best of three >= 41.0, median >= 40.5
#
# Arms: recipe (as published); varied (the same with BPE-dropout: 16 copies of the text, all but one cut into other pieces); wide
# (varied with twice the width), only on request.
arms=${arms:-recipe,varied}

one() {
    local arm=$1 seed=$2 name=multi30k/$1.$2
    shift 2
    train "$name" multi30k seed="$seed" "$@" && translation "$arm" "$seed" "$name"
}

mkdir -p log/multi30k
tokenizer multi30k
for arm in $(list "$arms"); do
    case $arm in
    recipe) set -- ;;
    varied) set -- 'data[0].copies=16' ;;
    wide) set -- 'data[0].copies=16' model.hidden=256 model.ffn=512 model.init_deviation=0.06 train.lr=3e-3 ;;
    *) die "multi30k has no arm '$arm'" ;;
    esac
    prepare "multi30k/$arm" multi30k "$@" || exit 1
    for seed in $(list "$seeds"); do spawn one "$arm" "$seed" "$@"; done
done
join
# shellcheck disable=SC2046
scores $(list "$arms")
