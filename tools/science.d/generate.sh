# Sentences a second of beam-5 translation, beside PyTorch with the same weights
#
# Arms: tiny (the model of multi30k), base (six layers each side, 512 wide). Both are trained briefly: only the speed counts here, and
# translations must end. $PYTHON runs bench/vs_torch_generate.py; $SENTENCES limits the test set.
arms=${arms:-tiny,base}

mkdir -p log/generate
tokenizer multi30k
for arm in $(list "$arms"); do
    case $arm in
    tiny) set -- train.steps=2000 train.warmup=800 ;;
    base) set -- train.steps=1500 train.warmup=600 model.layers=6 model.hidden=512 model.heads=8 model.ffn=2048 \
        model.init_deviation=0.04 train.lr=1e-3 ;;
    *) die "generate has no arm '$arm'" ;;
    esac
    prepare "generate/$arm" multi30k "$@" || exit 1
    train "generate/$arm" multi30k seed=1 "$@" || exit 1
    step "generate/$arm.speed" "${PYTHON:-python3}" "$home/bench/vs_torch_generate.py" --nebula "$nebula" \
        --model "generate/$arm" --text data/mt/multi30k/tok/test_2016_flickr.lc.norm.tok.en --device "$eval_device" \
        --dtype "$([ "$eval_device" = cpu ] && echo f32 || echo bf16,f32)" --lines "${SENTENCES:-1000}" || failed=1
    cat "log/generate/$arm.speed"
    while read -r type way rate; do result "$arm" 1 "$type $way" "$rate"; done <<END
$(sed -n -E 's/^(bf16|f32) +(.*[^ ]) +([0-9.]+) sentences.*/\1 \2 \3/p' "log/generate/$arm.speed" |
        sed -E 's/^([^ ]+) (.*) ([0-9.]+)$/\1 \2@\3/; s/ +/-/2g; s/@/ /')
END
done
