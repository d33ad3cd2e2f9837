#!/bin/sh
# A run that is killed, and goes on: resume.sh PROMPTS ANSWERS
deepinfer run "$1" -o "$2" &
sleep "${SECONDS_UNTIL_KILLED:-4}"
kill -9 $! 2>/dev/null          # as a power cut would
wait $!
deepinfer status "$2"           # how far it came, and the command that goes on
[ -e "$2" ] || deepinfer run "$1" -o "$2"   # the same command: nothing is answered twice
