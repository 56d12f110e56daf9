// Made by docs/reference.py of the code; change that.
export const ZERO_ERRORS = 2.0;
export const SET_SHOWN = 12;
export const SENTENCE_SHARE = 0.16666666666666666;
export const SENTENCE_WORD_MIN = 0.3333333333333333;
export const RANDOM_SETS = 19;
export const EVIDENCE_WORDS_MIN = 7;
/** What the terminal says too, by key. */
export const TEMPLATES = {
  "logit": "the logit of {label}",
  "logit_against": "the logit of {label} minus that of {against}",
  "explained": "explained: {logit}, {value}",
  "adaptive": "with effort adaptive: {answer}, from a part of the text; this explains the full reading",
  "towards": "towards {label}",
  "against": "against {label}",
  "unmarked": "{sign}: no clear effect, within two standard errors of zero",
  "sentences_coloured": "coloured by sentences; words of more than {least} logits stand out",
  "sentences_numbered": "sentences have their values at their ends, and words of more than {least} logits",
  "errors_unknown": "some standard errors are not known",
  "second_text": " (2nd text)",
  "method": "{method}, in logits",
  "method_steps": "{method}, {steps} {unit}, in logits",
  "method_exact": "{method}, exact, in logits",
  "method_fewer_steps": "{method}, {steps} of {asked} {unit}, in logits",
  "other_words": "{count} other words",
  "other_sentences": {
    "one": "another sentence",
    "other": "{count} other sentences"
  },
  "special": "special tokens",
  "special_remark": "belong to no word",
  "unknown": "unknown to the model",
  "unknown_remark": "included in the words above",
  "unread": "not read",
  "unread_remark": "no effect",
  "residual": "residual",
  "residual_remark": "sum minus expected sum",
  "ranked_first": {
    "one": "the word ranked first",
    "other": "the {count} words ranked first"
  },
  "random_sets": {
    "one": "another set of as many",
    "other": "{count} random sets of as many"
  },
  "chance": "(p = {p})",
  "BETTER_THAN_RANDOM": "leaving {first} out moves the answer more than any of {sets} {chance}",
  "INCONCLUSIVE": "{count} of {sets} move the answer at least as much as leaving {first} out {chance}",
  "too_short": "the text is too short to tell: it takes {least} words",
  "too_few_sets": "it takes {least} random sets to tell, and there was time for {count}",
  "NOT_FAITHFUL": "most of {sets} move the answer more than leaving {first} out {chance}: do not rely on these values",
  "FLAT": "the words together move the probability by less than 0.05: too little to judge a ranking by",
  "searched": {
    "one": "The word {words} was found by a search",
    "other": "The words {words} were found by a search"
  },
  "replaced": {
    "one": "erased in other ways it moves the answer",
    "other": "erased in other ways they move the answer"
  },
  "replaced_BETTER_THAN_RANDOM": "more than any of {sets} {chance}",
  "replaced_INCONCLUSIVE": "no more than {count} of {sets} {chance}",
  "replaced_NOT_FAITHFUL": "less than most of {sets} {chance}",
  "changing": {
    "one": "Without {words} it would be {answer}.",
    "other": "Without {words} it would be {answer} ({count} of {total} words)."
  },
  "lost": " lost",
  "gained": " gained",
  "lost_against": " of {label} rather than {against} lost",
  "gained_against": " of {label} rather than {against} gained",
  "probability_without": "probability{moved} without them",
  "out_of_time": "; time or rows ran out",
  "changes_answer": "changes the answer",
  "makes_answer": "makes {label} the answer",
  "none_flips": "no words found whose removal {goal}{limits}",
  "none_keeps": "no words found that alone make {label} the answer{limits}",
  "more_words": " and {count} more",
  "flips_empty": "without any word: {answer}",
  "keeps_empty": "no word is needed; without words: {answer}",
  "flips": "without {words}: {answer}{remark}",
  "keeps": "{words} alone: {answer}{remark}",
  "no_smaller": " (no smaller set does it{limits})",
  "all_needed": " (each of them is needed{limits})"
};
