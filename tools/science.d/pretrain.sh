# Multilingual encoder (12 x 768) at equal time: MLM, MLM+TLM, RTD; Tatoeba retrieval and XNLI from English alone
#
# Arms: mlm, tlm, rtd, one after the other, because each fills the GPU. Other text (FLORES, five languages) decides which layer's
# hidden states serve for retrieval. Fine-tuning uses the 15,000 English pairs, detokenised: NLI_EPOCHS (2), NLI_LR (4e-5).
arms=${arms:-mlm,tlm,rtd}
layers=${LAYERS:-6,8,10,12}
[ -z "$minutes" ] || keys=("train.minutes=$minutes" "${keys[@]}")
evaluation=(--device "$device" --dtype "$dtype" --threads "$threads")
flores=()
for l in de fr es zh; do flores+=("data/eval/flores200/devtest.$l" data/eval/flores200/devtest.en); done

# The sides of the pairs, each by itself, for the arm without pairs.
split_pairs() {
    local f p
    mkdir -p single
    for f in data/para/tatoeba.*.tsv; do
        p=${f#data/para/tatoeba.} p=${p%.tsv}
        [ -f "single/$p.${p#*-}.txt" ] && continue
        cut -f1 "$f" > "single/$p.${p%-*}.txt" && cut -f2 "$f" > "single/$p.${p#*-}.tmp" &&
            mv "single/$p.${p#*-}.tmp" "single/$p.${p#*-}.txt" &
    done
    wait
}

# it 's -> it's, can 't -> can't, ( a ) -> (a), a . -> a.
detokenise() {
    sed -e "s/ '\([a-zA-Z]\)/'\1/g" -e 's/ \([.,;:!?%)]\)/\1/g' -e 's/( /(/g' -e 's/\$ \([0-9]\)/$\1/g' "$1"
}

retrieve() { # NAME FOLDER OPTIONS AND FILES…: mean accuracy of both directions, a line a language, into log/NAME
    local name=$1 folder=$2
    shift 2
    step "$name" "$nebula" eval retrieval "$folder" "$@" "${evaluation[@]}"
}

accuracy() { awk -v l="$2" '$1 == l { print ($4 + $7) / 2 }' "log/$1"; }

# Languages on Tatoeba, plain and centred, at the layer that is best on FLORES.
measure_retrieval() {
    local arm=$1 folder=pretrain/$1 best=0 layer=0 l m how
    for l in $(list "$layers"); do retrieve "pretrain/$arm.flores.$l" "$folder" "${flores[@]}" --layer "$l" --centre & done
    wait
    for l in $(list "$layers"); do
        m=$(awk '/^mean of/ { print $4 }' "log/pretrain/$arm.flores.$l")
        result "$arm" 1 "flores.layer$l" "$m"
        if awk "BEGIN { exit !(${m:-0} > $best) }"; then best=$m layer=$l; fi
    done
    result "$arm" 1 layer "$layer"
    for how in no yes; do
        retrieve "pretrain/$arm.tatoeba.$how" "$folder" data/eval/laser_tatoeba --layer "$layer" "--centre=$how" || return 1
        for l in deu fra spa cmn ces rus ara bul ell hin swh tha tur urd vie; do
            result "$arm" 1 "tatoeba.$how.$l" "$(accuracy "pretrain/$arm.tatoeba.$how" $l)"
        done
    done
    clock "$arm: retrieval at layer $layer"
}

measure_nli() {
    local arm=$1 l
    step "pretrain/$arm.nli" "$nebula" eval nli "pretrain/$arm" --train nli.en.tsv data/nli/xnli/xnli_validation_*.tsv \
        --epochs "${NLI_EPOCHS:-2}" --lr "${NLI_LR:-4e-5}" --tokens 2048 --dropout 0.1 "${evaluation[@]}" || return 1
    for l in en de fr es zh ar bg el hi ru sw th tr ur vi; do
        result "$arm" 1 "xnli.$l" "$(sed -n "s/.*xnli_validation_$l.tsv: accuracy \([0-9.]*\).*/\1/p" "log/pretrain/$arm.nli")"
    done
    clock "$arm: fine-tuned"
}

mkdir -p log/pretrain
tokenizer multilingual
case $arms in *mlm*) split_pairs ;; esac
[ -f nli.en.tsv ] || detokenise data/nli/train_mnli15k/en.tsv > nli.en.tsv
# The tokenizer belongs to the arm with pairs; the others read the same text.
prepare pretrain/tlm pretrain-tlm || exit 1
for arm in $(list "$arms"); do
    [ "$arm" = tlm ] || prepare "pretrain/$arm" "pretrain-$arm" || exit 1
done
# One training after the other, nothing beside it: equal minutes are equal compute.
for arm in $(list "$arms"); do train "pretrain/$arm" "pretrain-$arm" || failed=1; done
for arm in $(list "$arms"); do
    [ -f "pretrain/$arm/model.safetensors" ] || continue
    spawn measure_retrieval "$arm"
    spawn measure_nli "$arm"
done
join

table() { # WHAT… of every arm: means of two or more are named "mean"
    local arm what
    for arm in $(list "$arms"); do
        printf '%-6s' "$arm"
        for what; do printf ' %7s' "$(for w in $(list "$what"); do values "$arm" "$w"; done | mean)"; done
        echo
    done
}
printf '\nTatoeba, %% (plain)     de      fr      es      zh    mean of the four\n'
table tatoeba.no.{deu,fra,spa,cmn} tatoeba.no.deu,tatoeba.no.fra,tatoeba.no.spa,tatoeba.no.cmn
printf 'Tatoeba, %% (centred)   de      fr      es      zh    mean of the four\n'
table tatoeba.yes.{deu,fra,spa,cmn} tatoeba.yes.deu,tatoeba.yes.fra,tatoeba.yes.spa,tatoeba.yes.cmn
printf 'XNLI validation, %%     en      de      fr      es      zh    mean of de, fr, es\n'
table xnli.{en,de,fr,es,zh} xnli.de,xnli.fr,xnli.es
