// Made by docs/reference.py of the code; change that.
/** The attribution methods by name, in the service's order. */
export const METHODS = {
  "integrated_gradients": {
    "name": "integrated_gradients",
    "byGradient": true,
    "unrelated": "occlusion",
    "term": "integrated gradients",
    "meaning": "The gradient at each token, summed on the way from a text of padding to this text.",
    "sumNote": "The values sum to the logit of this text less that of a text of padding, but for the residual.",
    "splitNote": "All of it lies on the token embedding: this method starts from a text of padding, which has the same segments and positions.",
    "unit": "steps",
    "steps": 16
  },
  "gradient_x_input": {
    "name": "gradient_x_input",
    "byGradient": true,
    "unrelated": "occlusion",
    "term": "gradient x input",
    "meaning": "The gradient at each token times its embedding: fast and rough.",
    "sumNote": "These values sum to nothing in particular.",
    "splitNote": "A LayerNorm follows the sum of the three, so at each token they make 0 together: what one adds, the others take. The value shown in the text view is that of the token embedding alone.",
    "unit": "",
    "steps": 1
  },
  "occlusion": {
    "name": "occlusion",
    "byGradient": false,
    "unrelated": "integrated_gradients",
    "term": "occlusion",
    "meaning": "What the logit loses when one word alone is left out.",
    "sumNote": "These values sum to nothing in particular: words share what they do.",
    "splitNote": "",
    "unit": "",
    "steps": 1
  },
  "shapley": {
    "name": "shapley",
    "byGradient": false,
    "unrelated": "integrated_gradients",
    "term": "Shapley value",
    "meaning": "What a word changes on average when the words are put in one by one, in random orders.",
    "sumNote": "The values sum to the logit of this text less that without any word, but for the residual.",
    "splitNote": "",
    "unit": "orders",
    "steps": 20
  },
  "two_step_shapley": {
    "name": "two_step_shapley",
    "byGradient": false,
    "unrelated": "",
    "term": "two-step Shapley",
    "meaning": "Shapley values of whole sentences, each shared among its words: the default of long texts.",
    "sumNote": "The values sum to the logit of this text less that without any word: first sentences share it, then their words.",
    "splitNote": "",
    "unit": "rows",
    "steps": 32
  }
};
