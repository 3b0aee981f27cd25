#!/usr/bin/env bash
# How the CPU recipes' settings were chosen: on a validation tenth of train, never on test. Trials are kept in
# docs/sweeps/DATASET.jsonl, one line each; those that are there are not run again.
#   benchmarks/sweep.sh wordnet-nouns [FOLDER]
set -euo pipefail
dataset=$1
source=${2:-$1}
tune() {
    umpteen tune "$dataset" --data "$source" --output "docs/sweeps/$dataset.jsonl" \
        --set data.fit_on=train --set training.epochs=5 --set optimizer.learning_rate=0.01 \
        --set encoder.query.dropout=0.3 --set encoder.query.bigrams=0 --set encoder.label.bigrams=0 "$@"
}
mkdir -p docs/sweeps
# Temperature and dropout; then the learning rate; then hashed bigrams in both towers, and in the query's alone.
tune --try objective.temperature=0.03,0.04,0.05,0.07 --try encoder.query.dropout=0.3,0.5
tune --set objective.temperature=0.04 --try optimizer.learning_rate=0.005,0.02
tune --set optimizer.learning_rate=0.005 --set encoder.label.bigrams=100000 --set encoder.query.bigrams=100000 \
    --try objective.temperature=0.03,0.04
tune --set encoder.query.bigrams=100000 --try objective.temperature=0.03 --try optimizer.learning_rate=0.003,0.005
