#!/bin/sh
# The long test of links and streams under faults: 200 kills and outages of up to a minute (about six minutes in all).
NEB_SOAK=1 exec "$(dirname "$1")/tests/test_faults"
