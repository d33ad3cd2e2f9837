#!/bin/sh
# One night's work on a file of prompts, for cron: nightly.sh PROMPTS ANSWERS
# Goes on where the night before stopped; prints something only if somebody has to look.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"${DEEPINFER:-deepinfer}" run "$1" -o "$2" --time-limit 5h 2>"$log"
code=$?
case $code in
  0 | 3 | 5 | 75 | 129 | 130 | 143) exit 0 ;;  # done, still running, or to be continued tomorrow
esac
# Finished the night before: nothing to do until the answers are taken away.
[ $code = 2 ] && [ -e "$2" ] && grep -q "already exists" "$log" && exit 0
tail -n 20 "$log" >&2
exit $code
