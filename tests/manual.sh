#!/bin/bash
# The manual: every verb has a page that formatters take without a complaint, docs/manual.md has the program's tables, every
# variable and file is in them, the shells complete, and the program ends with the statuses that the page gives.
#     tests/manual.sh NEBULA-I BUILD-FOLDER
set -eu
nebula=$(realpath "$1")
build=$(realpath "$2")
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; exit 1; }
has() { command -v "$1" > /dev/null; }

# ---- pages ----
verbs=$("$nebula" help | awk '/^  [a-z]/ { print $1 }')
"$nebula" manual --to man || fail "manual --to"
for verb in $verbs; do
    page=man/man1/nebula-i-$verb.1
    [ -s $page ] || fail "$verb has no page"
    "$nebula" manual $verb | cmp -s - $page || fail "manual $verb prints another page than manual --to writes"
    # Every option of --help stands on the page, in the notation of man(7).
    for option in $("$nebula" $verb --help | awk '/^  --/ { print $1 }'); do
        grep -qF -- "\\fB$(printf '%s' "$option" | sed 's/-/\\-/g')\\fR" $page || fail "the page of $verb lacks $option"
    done
done
[ "$(ls man/man1 | wc -l)" = $(($(echo "$verbs" | wc -l) + 1)) ] || fail "man1 holds something else than nebula-i.1 and a page a verb"
for verb in $verbs; do
    grep -q "nebula.-i.-$verb\\\\fR (1)" man/man1/nebula-i.1 || fail "nebula-i.1 does not list $verb"
done
"$nebula" help job | awk '/^  [a-z]/ { print $1 }' | sort -u | while read -r key; do
    grep -q "^.fB$key.fR" man/man5/nebula-i-job.5 || fail "nebula-i-job.5 lacks the key $key"
done
if has mandoc; then
    for page in man/man?/*; do mandoc -T lint -W warning $page > lint || fail "mandoc complains about $page: $(cat lint)"; done
else
    echo "manual: mandoc is missing, its check of the pages is left out"
fi
if has groff; then
    for page in man/man?/*; do
        groff -man -Tutf8 -ww $page 2> lint > shown || fail "groff refuses $page"
        [ ! -s lint ] || fail "groff complains about $page: $(cat lint)"
    done
    groff -man -Tascii -P-c man/man1/nebula-i-lab.1 | sed "s/.$(printf '\b')//g" | grep -q -- '--schedule TEXT' || fail "the page of lab does not show --schedule"
else
    echo "manual: groff is missing, its check of the pages is left out"
fi

# ---- the page of the project ----
"$nebula" manual --tables > tables
python3 - "$top/docs/manual.md" tables <<'PY' || fail "docs/manual.md does not hold the tables that nebula-i manual --tables prints"
import sys
page, tables = (open(f).read() for f in sys.argv[1:])
missing = [t for t in tables.strip().split("\n\n") if t not in page]
print("\n".join(missing))
sys.exit(bool(missing))
PY
for name in $(cd "$top" && grep -rhoE 'getenv\("[A-Z_]+"|environ\.get\("[A-Z_]+"' src bench/*.c python/nebula_i | sed 's/.*"\(.*\)"/\1/' | sort -u); do
    grep -q "\`$name\`" tables || fail "the program reads \$$name, the manual does not name it"
done

# ---- installed files ----
[ ! -d "$build/share" ] || cmake --install "$build" --component manual --prefix "$dir/prefix" > install.log || fail "cmake --install: $(cat install.log)"
if [ -d "$build/share" ]; then
    for file in man/man1/nebula-i.1 man/man1/nebula-i-train.1 man/man5/nebula-i-job.5 bash-completion/completions/nebula-i \
        zsh/site-functions/_nebula-i fish/vendor_completions.d/nebula-i.fish; do
        [ -s "prefix/share/$file" ] || fail "cmake --install leaves out share/$file"
    done
fi

# ---- completion ----
"$nebula" completion bash > complete.bash
completes() { # EXPECTED WORD…: the last word is completed; EXPECTED must be among the answers, or be all of them with = before it
    local want=$1 got
    shift
    got=$(bash -c 'source complete.bash; COMP_WORDS=(nebula-i "$@"); COMP_CWORD=$#; COMP_LINE="nebula-i $*"; COMP_POINT=${#COMP_LINE}
        _nebula_i nebula-i "${!#}" ""; printf "%s\n" "${COMPREPLY[@]}"' - "$@" 2>&1)
    case $want in
    =*) [ "$got" = "$(printf '%s\n' ${want#=})" ] || fail "bash completes 'nebula-i $*' to: $got" ;;
    *) printf '%s\n' "$got" | grep -qx -- "$want" || fail "bash completes 'nebula-i $*' to: $got" ;;
    esac
}
touch job.yaml
completes "=train translate" tr
completes "=--version --verbose" --v
completes --quiet lab job.yaml --q
for verb in $verbs; do completes $verb $verb; done
completes =--schedule lab job.yaml --sch
completes "=namespaces" lab --mode n
completes "=user" lab --mode = us
completes "=job.yaml" train jo
completes =train.dtype= train job.yaml train.dt
completes "=bf16" train job.yaml train.dtype = b
completes =train.steps= lab job.yaml --wan 100mbit,50ms train.st
completes "=tokenizer tokenise" corpus tokeni
completes =--two-files corpus tokenise --two
completes =evict order folder ev
completes =zsh completion z
completes =codec-training bench codec-
completes =simulate help sim
completes job.yaml wan run jo
if has zsh; then
    "$nebula" completion zsh > _nebula-i
    zsh -n _nebula-i || fail "zsh does not read its script"
else
    echo "manual: zsh is missing, its script is left out"
fi
if has fish; then
    "$nebula" completion fish > nebula-i.fish
    fished() { fish -c "source nebula-i.fish; complete -C'$1'" | cut -f1 | grep -qx -- "$2" || fail "fish does not complete '$1' to $2"; }
    fished 'nebula-i tr' translate
    fished 'nebula-i lab --mode us' user
    fished 'nebula-i corpus tokeni' tokenise
    fished 'nebula-i order folder ev' evict
    fished 'nebula-i train job.yaml train.st' train.steps=
else
    echo "manual: fish is missing, its script is left out"
fi

# ---- exit statuses: each line of the table is provoked ----
ends() { # STATUS COMMAND…
    local want=$1 got=0
    shift
    "$@" > said 2>&1 < /dev/null || got=$?
    [ $got = $want ] || fail "'$*' ended with $got instead of $want: $(cat said)"
}
cat "$top"/docs/[a-f]*.md > text
cat > job.yaml <<'YAML'
task: causal
cache: data
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: gpt2, hidden: 128, layers: 1, heads: 2}
train: {steps: 4, tokens: 128, max_len: 32, log_every: 1, save_every: 100000, threads: 1}
data: [{file: text}]
YAML
ends 0 "$nebula" -V
grep -q '^nebula-i [0-9]' said || fail "-V does not print the version"
ends 0 "$nebula" train job.yaml out=good
ends 1 "$nebula" train missing.yaml
ends 2 "$nebula" train job.yaml train.steps=none
ends 2 "$nebula" lab --nonsense
for site in a b c; do "$nebula" site init $site > /dev/null 2>&1; done
"$nebula" roster add draft a 127.0.0.1:$(free_port) --votes 2
"$nebula" roster add draft b 127.0.0.1:9
"$nebula" roster seal draft roster --operator a > /dev/null 2>&1
"$nebula" roster join roster a
cat job.yaml - > two.yaml <<'YAML'
sites: [{name: a}, {name: b}]
wan: {interval: 5, fragments: 1, round_seconds: 1, rung: int4}
YAML
# Site a has the majority and makes records without the other. When it is dead, nobody carries out an order.
"$nebula" train two.yaml --site a out=two train.steps=1000000 > two.log 2>&1 & one=$!
for i in $(seq 1800); do if grep -q '"record": [1-9]' a/run/status.json 2>/dev/null; then break; fi; sleep 0.1; done
ends 4 "$nebula" order a end --operator c --wait 60 # c is not the operator
kill -9 $one
wait $one 2>/dev/null || true
ends 3 "$nebula" order a end --operator a --wait 0.2
head -c 100 roster > torn
ends 5 "$nebula" roster show torn
ends 6 bash -c 'trap "" XFSZ; ulimit -f $(($(wc -c < good/model.safetensors) / 1024 * 2)); exec "$@"' - "$nebula" train job.yaml out=full
mkdir poisoned
cp good/model.yaml good/tokenizer.model poisoned
python3 - <<'PY'
kept = bytearray(open("good/model.safetensors", "rb").read())
begin = 8 + int.from_bytes(kept[:8], "little")
kept[begin:] = b"\xff" * (len(kept) - begin)  # NaN
open("poisoned/model.safetensors", "wb").write(kept)
PY
ends 7 "$nebula" train job.yaml out=nan init.from=poisoned train.steps=100
stopped() { # STATUS SIGNAL: of a training that gets it; meanwhile nobody else may train in its folder
    local got=0
    "$nebula" train job.yaml out=s$2 train.steps=1000000 > s$2.log 2>&1 & one=$!
    for i in $(seq 1800); do if grep -q 'step 2/' s$2.log; then break; fi; sleep 0.1; done
    ends 8 "$nebula" train job.yaml out=s$2
    kill -$2 $one
    wait $one || got=$?
    [ $got = $1 ] || fail "SIG$2 ends a training with $got instead of $1: $(tail -n 3 s$2.log)"
}
stopped 143 TERM
stopped 129 HUP
ends 9 "$nebula" wan run --wan 1gbit,0ms -- sh -c 'exit 9'
for file in $(ls good) $(ls a); do # each of them is explained, the folder's name apart
    case $file in
    events.out.*) file='events.out.tfevents.*' ;;
    metrics.sqlite-*) file='metrics.sqlite-*' ;;
    esac
    grep -qF -e "OUT/$file" -e "SITE/$file" tables || fail "the table of files lacks $file"
done
for status in 0 1 2 3 4 5 6 7 8; do grep -q "^| \`$status\` |" tables || fail "the table lacks status $status"; done
echo "manual: ok"
