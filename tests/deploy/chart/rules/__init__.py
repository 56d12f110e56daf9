"""Rules for manifests that no schema can express. Each rule yields the faults in the documents of one release."""

from tests.deploy.chart.rules import around, pods
from tests.deploy.chart.rules.release import Rule

RULES: tuple[Rule, ...] = (*pods.RULES, *around.RULES)
