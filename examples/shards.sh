#!/bin/sh
# Parts of one file, answered anywhere, and put together: shards.sh PROMPTS ANSWERS [PARTS]
set -e
parts=${3:-3}
part=1
while [ $part -le "$parts" ]; do   # each could run on a machine of its own
  deepinfer run "$1" -o "$2" --shard $part/"$parts" --quiet
  part=$((part + 1))
done
deepinfer merge -o "$2"
