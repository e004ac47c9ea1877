#!/bin/sh
# Frontiers of three hosts on Split CIFAR-100: 20 epochs, three seeds, five weights of the stability loss, 135 runs.
# Run it from the root of the repository on a machine with a GPU. DATA is the folder of CIFAR-100, OUT that of the runs.
# JOBS runs share the GPU (default: as many as fit, at most eight). The same command goes on after an interruption.
set -e
DATA=${DATA:?name the folder of CIFAR-100}
OUT=${OUT:-runs/frontier}

trace() {
  host=$1
  shift
  flashback frontier "$host" --benchmark split-cifar100 --seed-list 123,246,369 --weights 0.1,0.3,1,3,10 \
    --set training.epochs=20 --fast --data "$DATA" --out "$OUT/$host" ${JOBS:+--jobs "$JOBS"} "$@"
}

# Each beside flashback as printed: what gained on validation images, or a control that changes the host alone.
trace lucir --form printed --form free-primary
trace lwf-mc --form printed --form running-teacher
trace oewc --form printed --form training.merge=0.3
flashback report "$OUT" --plots "$OUT/plots"
