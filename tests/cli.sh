#!/bin/sh
# The command line itself: usage, exit codes, suggestions, and the benchmarks' JSON frame.
set -eu
nebula=$1
fail() { echo "FAIL: $*" >&2; exit 1; }

"$nebula" --version | grep -q '^nebula-i [0-9]' || fail "--version does not print the version"
[ "$("$nebula" -V)" = "$("$nebula" --version)" ] || fail "-V is not --version"
[ "$("$nebula" -h)" = "$("$nebula" help)" ] || fail "-h is not help"
[ "$("$nebula" train -h)" = "$("$nebula" train --help)" ] || fail "train -h is not train --help"
"$nebula" help | grep -q bench || fail "help does not list the verbs"
for verb in $("$nebula" help | awk '/^  [a-z]/ { print $1 }'); do
    "$nebula" "$verb" --help | grep -q . || fail "$verb --help prints nothing"
    case $verb in bench) continue ;; esac
    "$nebula" "$verb" some --thing --help > /dev/null 2>&1 || fail "$verb fails when --help stands among other words"
done
for bench in $("$nebula" bench | awk '/^  [a-z]/ { print $1 }'); do
    "$nebula" bench "$bench" --json --help | grep -q "^usage: nebula-i bench $bench" || fail "bench $bench --help prints no usage"
done
# answers STATUS TEXT ARGUMENT…: the command must end with this status and print this text.
answers() {
    status=$1 text=$2 got=0
    shift 2
    out=$("$nebula" "$@" 2>&1 < /dev/null) || got=$?
    [ "$got" = "$status" ] || fail "nebula-i $*: status $got instead of $status: $out"
    printf '%s\n' "$out" | grep -qF -- "$text" || fail "nebula-i $*: no '$text' in: $out"
}
for verb in adopt chat completion corpus device embed eval export generate import lab order report roster score site train translate wan; do
    case $verb in
    train | lab) word="give a job file" ;;
    embed | translate) word="give the folder of a trained model" ;;
    chat | generate) word="give the folder of a trained or imported decoder" ;;
    export) word="give the folder of a trained model and one to write" ;;
    import) word="give a Hugging Face folder and one to write" ;;
    report) word="give the folder of a run" ;;
    *) word="a word is missing" ;;
    esac
    answers 2 "nebula-i $verb: $word" "$verb"
    answers 2 "usage: nebula-i $verb" "$verb"
done
for verb in adopt embed export import simulate status version; do
    answers 2 "nebula-i $verb: 'c' is one word too many" "$verb" $(
        case $verb in simulate | version) ;; status) echo a ;; *) echo a b ;; esac) c
done
answers 2 "nebula-i roster: no 'sela'; did you mean 'seal'?" roster sela a b
answers 2 "nebula-i roster seal: a word is missing" roster seal a
answers 2 "nebula-i order evict: a word is missing" order --operator x folder evict
answers 2 "nebula-i wan run: 'b' is one word too many" wan run a b
answers 0 "nebula-i order FOLDER evict NAME" help order
answers 0 "usage: nebula-i corpus tokenise" help corpus tokenise
answers 0 "usage: nebula-i corpus tokenise" corpus tokenise some --thing --help
answers 2 "unknown option 'sed'; did you mean 'seed'?" device info --sed 1
answers 2 "option 'dtype': 'f16' is not f32 or bf16" translate folder --dtype f16
answers 2 "option 'port': '0' is not a whole number from 1 to 65535" lab job.yaml --port 0
answers 2 "at most 12 with faults" simulate --sites 13
answers 1 "cannot open missing.yaml" train missing.yaml
answers 0 "--help" wan run --wan 1gbit,0ms -- echo --help
if "$nebula" >/dev/null 2>&1; then fail "nebula-i without a verb succeeded"; fi
"$nebula" bnech 2>&1 | grep -q "did you mean 'bench'" || fail "no suggestion for a mistyped verb"
"$nebula" bench base --json | tail -1 | grep -q '^{"bench":"base","figures":\[{"name":"pool.region","value":' ||
    fail "bench --json prints something else"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
printf '{"job":"j\\u001bc","strategy":"replica","written":1,"sites":[{"site":"a","role":"\\u009b2J","state":"\\u001b[2J"}]}' > "$dir/status.json"
"$nebula" status "$dir" > "$dir/shown" || fail "nebula-i status does not read a status of the version before"
if LC_ALL=C grep -q "$(printf '[\001-\010\033\177\302]')" "$dir/shown"; then fail "control characters of a peer reach the terminal"; fi
"$nebula" status "$dir" --json | LC_ALL=C grep -q "$(printf '[\033\302]')" && fail "control characters of a peer are in --json"
echo "cli: ok"
