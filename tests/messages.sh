#!/bin/sh
# Every wrong input of docs/messages.md gets the message that stands beside it. The page is the data: its files, its setup and
# the first two columns of its tables. With --self-test: a row whose message is another one is noticed.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
page=${NEB_MESSAGES:-$top/docs/messages.md}
fail() { echo "FAIL: $*" >&2; exit 1; }
dir=$(mktemp -d)
holder=
trap '[ -z "$holder" ] || kill "$holder" 2>/dev/null; rm -rf "$dir"' EXIT

if [ "${2:-}" = --self-test ]; then
    sed "s/a key may stand only once/a key may stand twice/" "$page" > "$dir/page.md"
    if NEB_MESSAGES=$dir/page.md NEB_ONLY=stand "$0" "$nebula" > "$dir/log" 2>&1; then fail "a message that differs was not noticed"; fi
    grep -q "^FAIL: .*a key may stand twice" "$dir/log" || { cat "$dir/log" >&2; fail "the report does not name the message"; }
    exit
fi

# The program under the name that the page uses.
mkdir "$dir/bin" "$dir/scene"
ln -s "$nebula" "$dir/bin/nebula-i"
PATH=$dir/bin:$PATH
export PATH
unset NEBULA_LOG NO_COLOR
cd "$dir/scene"

# An address that is taken.
perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die;
    $| = 1; print $s->sockport, "\n"; sleep 600' > "$dir/port" &
holder=$!
while [ ! -s "$dir/port" ]; do kill -0 "$holder" || fail "no port can be taken"; sleep 0.05; done
BUSY=127.0.0.1:$(cat "$dir/port")
export BUSY

# The files and the setup of the page.
awk -v q='```' '$0 == q { out = ""; close(last) } out { print > out; last = out }
    /^# file: / { out = $3 } /^# setup$/ { out = "setup.sh" }' "$page"
[ -s job.yaml ] && [ -s two.yaml ] && [ -s setup.sh ] || fail "the page has lost its files"
sed -i '1{/^$/d}' job.yaml two.yaml
cat "$top/LICENSE" > corpus.txt
"$nebula" corpus tokenizer corpus.txt --out tokenizer.model --vocab 300 --type bpe > "$dir/log" 2>&1 || { cat "$dir/log"; fail "no tokenizer"; }
sh -e setup.sh > "$dir/log" 2>&1 || { cat "$dir/log"; fail "the setup of the page"; }

# The rows: input and message, the backquotes taken off. A tab cannot be part of either.
awk '/^\| `/ { n = split($0, part, / \| /); if (n < 3) next
    sub(/^\| `/, "", part[1]); sub(/`$/, "", part[1]); sub(/^`/, "", part[2]); sub(/`$/, "", part[2])
    print part[1] "\t" part[2] }' "$page" > "$dir/rows"
rows=$(grep -c . "$dir/rows")
[ "$rows" -ge 30 ] || fail "the page has only $rows rows"

grep -- "${NEB_ONLY:-.}" "$dir/rows" > "$dir/chosen"
tab=$(printf '\t')
bad=0
while IFS="$tab" read -r input message; do
    rm -rf "$dir/case"
    cp -r "$dir/scene" "$dir/case"
    cd "$dir/case"
    status=0
    timeout 240 sh -c "$input" > "$dir/out" 2>&1 < /dev/null || status=$?
    # without the time and the level; a backquote would end the code of a table's cell, so the page has ' there
    sed "s/^[0-9:.]* \(error\|warn\|info\) *//; s/\`/'/g" "$dir/out" > "$dir/said"
    pattern=$(printf '%s' "$message" | sed 's/[][\\.*^$]/\\&/g; s/…/.*/g')
    if ! grep -qx -- "$pattern" "$dir/said"; then
        printf 'FAIL: %s: not said: %s; but:\n' "$input" "$message" >&2
        cat "$dir/out" >&2
        bad=$((bad + 1))
    fi
    case $status in [1-8]) ;; *) echo "FAIL: $input: exit status $status" >&2; bad=$((bad + 1)) ;; esac
done < "$dir/chosen"
[ "$bad" = 0 ] || fail "$bad of $rows rows"
echo "messages: ok, $rows wrong inputs"
