"""What must hold of manifests that no schema says: each rule gives the faults that it finds among the documents of one release."""

from tests.deploy.rules import around, pods
from tests.deploy.rules.release import Rule

RULES: tuple[Rule, ...] = (*pods.RULES, *around.RULES)
