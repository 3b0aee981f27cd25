#!/usr/bin/env bash
# How the demo's settings were chosen: on a validation tenth of train, never on test. Trials are kept in
# docs/results/sweeps/DATASET.jsonl, one line each; those that are there are not run again.
#   benchmarks/sweep.sh wordnet-nouns [FOLDER]
# The rule: the highest mean of P@1, P@5, PSP@5 and R@100 on validation.
set -euo pipefail
dataset=$1
source=${2:-$1}
tune() { umpteen tune "$dataset" --data "$source" --output "docs/results/sweeps/$dataset.jsonl" "$@"; }
unigrams=(--set encoder.query.bigrams=0 --set encoder.label.bigrams=0)
both=(--set encoder.query.bigrams=100000 --set encoder.label.bigrams=100000)
queries=(--set encoder.query.bigrams=100000 --set encoder.label.bigrams=0)
mkdir -p docs/results/sweeps

# Temperature and dropout, then the learning rate.
tune "${unigrams[@]}" --set optimizer.learning_rate=0.01 --set training.epochs=8 --set evaluation.every_epochs=2 \
    --try objective.temperature=0.05,0.07
tune "${unigrams[@]}" --set optimizer.learning_rate=0.01 --set training.epochs=5 \
    --try objective.temperature=0.03,0.04,0.05,0.07 --try encoder.query.dropout=0.3,0.5
tune "${unigrams[@]}" --set objective.temperature=0.04 --set training.epochs=5 --try optimizer.learning_rate=0.005,0.02
# Hashed bigrams in both towers, then in the query's alone.
tune "${both[@]}" --set optimizer.learning_rate=0.01 --set training.epochs=5 --try objective.temperature=0.04
tune "${both[@]}" --set optimizer.learning_rate=0.005 --set training.epochs=5 --try objective.temperature=0.03,0.04
tune "${queries[@]}" --set optimizer.learning_rate=0.005 --set training.epochs=5 --try objective.temperature=0.03,0.035
# How long, how fast.
tune "${queries[@]}" --set training.epochs=4 --try optimizer.learning_rate=0.003,0.005
tune "${queries[@]}" --set training.epochs=4 --set optimizer.learning_rate=0.005 --try objective.temperature=0.025
tune "${queries[@]}" --set training.epochs=7 --try optimizer.learning_rate=0.003
