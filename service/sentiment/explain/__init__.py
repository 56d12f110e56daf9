"""Why an answer is what it is: attention, attribution, evidence, counterfactuals, heads. Pure; the engine runs the graphs."""
