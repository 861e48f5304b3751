# Two sites on this machine over 100 Mbit/s and 50 ms: a GPU and a CPU site; int4 and a sparse rung against one site; a teacher elsewhere
#
# Arms:
#   mixed    rate of the GPU site beside a CPU site, against both alone at the same time; roots
#   quality  25 M parameters, 20,000 steps: two sites on one GPU with int4 and sparse2.k256, against one site with both batches in one
#            and several learning rates, all at the same time, with the first of --seeds. $LRS: learning rates of one site; $TWO:
#            RUNG:LR:OUTER_LR:OUTER_MOMENTUM:H, … of two; $TOKENS: tokens of a site's batch
#   tutor    Transformer-Tiny taught by a model on its own site and by one on another, for the same steps; needs the models of
#            `transfer` in OUT
arms=${arms:-mixed,quality,tutor}
# shellcheck source=/dev/null
. "$home/tools/science.d/common-lower.sh"
lrs=${LRS-1e-3,1.4e-3,2e-3}
two=${TWO-int4:8e-4:1:0.6:100,sparse2.k256:8e-4:1:0.6:100}
tokens=${TOKENS:-4096} # of a batch of each of two sites
seed=${seeds%%,*}      # of quality and tutor

has() { case ,$arms, in *,$1,*) return 0 ;; esac; return 1; }

make_sites_text() {
    local l
    [ -f sites/valid.txt ] && return 0
    make_lower en de fr es cs ru
    mkdir -p sites
    { cat lower/eltec.en.txt lower/commonvoice.en.txt; cut -f1 lower/en-de.tsv; } > sites/en.all
    { cat lower/eltec.de.txt lower/commonvoice.de.txt; cut -f2 lower/en-de.tsv; } > sites/de.all
    { cat lower/eltec.fr.txt lower/commonvoice.fr.txt; cut -f2 lower/en-fr.tsv; } > sites/fr.all
    for l in es cs; do cat lower/eltec.$l.txt lower/commonvoice.$l.txt > sites/$l.all; done
    cat lower/eltec.ru.txt > sites/ru.all
    for l in en de fr es cs ru; do awk 'NR % 200' sites/$l.all > sites/$l.train.txt; done
    awk 'FNR % 200 == 0' sites/??.all > sites/valid.tmp && mv sites/valid.tmp sites/valid.txt
}

# Tokens a second between the first and the last line of a log, so without starting; lines show the mean so far.
steady() {
    awk '/ step [0-9]+\// { for (i = 1; i < NF; i++) { if ($i == "step") { split($(i + 1), s, "/"); n = s[1] } if ($(i + 1) == "tokens/s") r = $i }
        if (r > 0) { if (!first) { first = n; t0 = n / r } else { last = n; t1 = n / r } } }
        END { if (t1 > t0) printf "%.4f", (last - first) / (t1 - t0) }' "$1"
}

state_root() { sed -n 's/.*record \([0-9]*\), state root \([0-9a-f]*\).*/\1 \2/p' "$1" | tail -n 1; }

mixed() {
    local how
    for how in alone together; do
        apart=''
        [ $how = together ] || apart=--apart
        laboratory sites/mixed.$how sites-mixed 7200 'sites[0].train.device='"$device" 'sites[0].train.dtype='"$dtype" || return 1
        result mixed 1 gpu.$how "$(steady sites/mixed.$how/gpu/log)"
        clock "mixed, $how:"
        grep -A 2 '^site  *role' "log/sites/mixed.$how.lab"
    done
    apart=''
    result mixed 1 rate.share "$(awk -v a="$(values mixed gpu.alone)" -v b="$(values mixed gpu.together)" 'BEGIN { if (a > 0) printf "%.4f", b / a }')"
    local a b
    a=$(state_root sites/mixed.together/gpu/log) b=$(state_root sites/mixed.together/cpu/log)
    [ -n "$a" ] && [ "$a" = "$b" ]
    result mixed 1 roots.equal $((1 - $?))
    clock "mixed: records and roots '$a' and '$b'"
}

held_out() { # ARM FOLDER
    step "sites/$1.loss" "$nebula" eval loss "$jobdir/sites-replica.yaml" out="$2" train.device="$device" train.dtype="$dtype" \
        train.threads="$threads" "${keys[@]}" train.tokens=4096 || return 1
    result "$1" "$seed" loss "$(sed -n 's/^valid loss \([0-9.]*\),.*/\1/p' "log/sites/$1.loss")"
}

one_site() {
    train "sites/one.$1" sites-replica seed="$seed" train.lr="$1" train.tokens=$((2 * tokens)) && held_out "one.$1" "sites/one.$1"
}

two_sites() { # SETTING PORT
    local rung lr outer momentum h name=sites/${1//:/-}
    IFS=: read -r rung lr outer momentum h <<< "$1"
    laboratory "$name" sites-replica "$2" seed="$seed" wan.rung="$rung" train.lr="$lr" wan.outer_lr="$outer" \
        wan.outer_momentum="$momentum" wan.interval="${h:-100}" train.tokens="$tokens" || return 1
    held_out "$1" "$name/berlin"
    result "$1" "$seed" records "$(state_root "$name/berlin/log" | cut -d' ' -f1)"
    clock "$1: $(grep 'state root' "$name/berlin/log" | tail -n 1 | cut -c1-160)"
}

tutor() {
    local teacher=transfer/tuned.$seed
    [ -f "$teacher/model.safetensors" ] || die "no teacher in $out/$teacher: tools/science transfer makes it"
    train sites/here transfer-student seed="$seed" distill.teacher="$teacher" model.dropout=0.2 train.minutes=0 train.steps="${TUTOR_STEPS:-3000}" &&
        translation here "$seed" sites/here
    laboratory sites/elsewhere transfer-tutor 7201 seed="$seed" distill.teacher="$teacher" train.minutes=0 \
        train.steps="${TUTOR_STEPS:-3000}" && translation elsewhere "$seed" sites/elsewhere/boston
    result elsewhere "$seed" lesson "$(grep 'bytes for each' sites/elsewhere/boston/log | tail -n 1)"
    clock "$(grep 'bytes for each' sites/elsewhere/boston/log | tail -n 1)"
}

tokenizer transfer
tokenizer sites
has tutor && [ ! -f cache/transfer/tokenizer.model ] &&
    die "no tokenizer: --tokenizers DIR with transfer.model, or run transfer first"
make_sites_text
prepare sites/replica sites-replica || exit 1
if has mixed; then mixed || failed=1; fi
if has quality; then
    kept=$jobs jobs=16 port=7210
    for setting in $(list "$two"); do spawn two_sites "$setting" $((port++)); done
    for lr in $(list "$lrs"); do spawn one_site "$lr"; done
    join
    jobs=$kept
fi
if has tutor; then tutor || failed=1; fi

echo
if has mixed; then
    echo "GPU site beside a CPU site: $(values mixed rate.share) of its rate alone; roots equal: $(values mixed roots.equal)"
fi
if has quality; then
    best=$(for lr in $(list "$lrs"); do values "one.$lr" loss "$seed"; done | sort -n | head -n 1)
    for lr in $(list "$lrs"); do echo "one site, lr $lr: held-out loss $(values "one.$lr" loss "$seed")"; done
    for setting in $(list "$two"); do
        echo "two sites, $setting: held-out loss $(values "$setting" loss "$seed"), $(awk -v a="$(values "$setting" loss "$seed")" -v b="$best" 'BEGIN { if (b > 0) printf "%+.2f %%", 100 * (a / b - 1) }'), records $(values "$setting" records "$seed")"
    done
fi
if has tutor; then scores here elsewhere; fi
