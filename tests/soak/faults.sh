#!/bin/sh
# Links and streams under faults, the long form: 200 kills, outages of up to a minute (about six minutes in all).
NEB_SOAK=1 exec "$(dirname "$1")/tests/test_faults"
