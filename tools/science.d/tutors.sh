# Multi30k en-de: tutors across tokenizers, sequence-level distillation; targets: across >= same - 0.5, sequence >= same + 0.3
#
# Arms:
#   alone      Transformer-Tiny without a teacher
#   same       with the likeliest tokens of a teacher of twice the width, which lives on another site and has its tokenizer
#   across     the same of a teacher that has a tokenizer of its own
#   sequence   as `same`, and the student learns the teacher's translations (five beams, the four likeliest), too
# A trial on a CPU: --device cpu --seeds 1 model.hidden=64 model.layers=1 train.tokens=1024 train.steps=1000 train.warmup=200 …
arms=${arms:-alone,same,across,sequence}

has() { case ,$arms, in *,$1,*) return 0 ;; esac; return 1; }

alone() {
    train "tutors/alone.$1" tutors-student seed="$1" distill.teacher= sites= && translation alone "$1" "tutors/alone.$1"
}

taught() { # ARM SEED TEACHER KEYS…
    local arm=$1 seed=$2 name=tutors/$1.$2 teacher=$3
    shift 3
    laboratory "$name" tutors-student $((7200 + 10 * seed + ${#arm})) seed="$seed" distill.teacher="$teacher" "$@" &&
        result "$arm" "$seed" bytes_per_row "$(sed -n 's/.* \([0-9.]*\) bytes .*row.*/\1/p' "$name/boston/log" | tail -n 1)" &&
        translation "$arm" "$seed" "$name/boston"
}

mkdir -p log/tutors
tokenizer tutors
[ -f tutors/teacher/model.safetensors ] || { prepare tutors/teacher tutors-teacher && train tutors/teacher tutors-teacher; } || exit 1
if has across && [ ! -f tutors/other/model.safetensors ]; then
    own=(cache=cache/tutors-other tokenizer.vocab=9000 tokenizer.type=unigram)
    prepare tutors/other tutors-teacher "${own[@]}" && train tutors/other tutors-teacher "${own[@]}" || exit 1
fi
for teacher in teacher other; do
    [ ! -f tutors/$teacher/model.safetensors ] || translation $teacher 1 tutors/$teacher || exit 1
done
for seed in $(list "$seeds"); do
    if has alone; then spawn alone "$seed"; fi
    if has same; then spawn taught same "$seed" tutors/teacher; fi
    if has across; then spawn taught across "$seed" tutors/other; fi
    if has sequence; then spawn taught sequence "$seed" tutors/teacher distill.sequence=beam5 distill.n=4 distill.gold=0.2; fi
done
join
# shellcheck disable=SC2046
scores teacher other $(list "$arms")
