"""Rules: does a claim follow (true), does its opposite (false), or neither (unknown), after 0 to 3 rule steps?"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from driftlab.tasks.base import content_hash
from driftlab.tasks.embedded.documents import Doc, TrainingText, choice_doc
from driftlab.tasks.embedded.world import PEOPLE, TRAITS, World

LABELS = ("true", "false", "unknown")
DEPTHS = (0, 1, 2, 3)
ITEMS_PER_CELL = 50
"""Evaluation items of each label at each depth."""
QUESTIONS_PER_THEORY = 2
QUESTIONS_PER_TRAINING_TEXT = 4
TRAITS_PER_THEORY = 5
RULES_PER_THEORY = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Theory:
    """Two facts about a person and four rules; a rule's premise is a trait one has, never one that is lacked.

    Attributes:
        person: whom the facts are about.
        facts: (trait, has it).
        rules: (premise, conclusion, gives it); a rule that does not give its conclusion bars it.
    """

    person: str
    facts: tuple[tuple[str, bool], ...]
    rules: tuple[tuple[str, str, bool], ...]

    @property
    def text(self) -> str:
        facts = [f"{self.person} {'has' if has else 'lacks'} {trait} ." for trait, has in self.facts]
        rules = [f"{premise} {'gives' if gives else 'bars'} {trait} ." for premise, trait, gives in self.rules]
        return " ".join(facts + rules)

    @property
    def key(self) -> tuple[str, frozenset[tuple[str, bool]], frozenset[tuple[str, str, bool]]]:
        """The theory whatever the order in which it is told."""
        return self.person, frozenset(self.facts), frozenset(self.rules)

    def answers(self) -> dict[str, tuple[str, int]] | None:
        """For each trait the label and depth of the claim of it; None when the theory contradicts itself.

        The depth of a claim that is decided is the number of rule steps of its shortest proof; of an
        unknown claim, the steps of the longest chain of rules that would have led to it.
        """
        proofs = self._proofs()
        found: dict[str, tuple[str, int]] = {}
        for trait in {trait for rule in self.rules for trait in rule[:2]} | {trait for trait, _ in self.facts}:
            yes, no = (trait, True) in proofs, (trait, False) in proofs
            if yes and no:
                return None
            if yes or no:
                found[trait] = ("true" if yes else "false", proofs[trait, yes])
            else:
                found[trait] = ("unknown", self._longest_chain(trait))
        return found

    def _proofs(self) -> dict[tuple[str, bool], int]:
        """(trait, has it) to the rule steps of its shortest proof."""
        proofs = dict.fromkeys(self.facts, 0)
        for step in range(1, len(self.rules) + 1):
            new = {(to, gives) for premise, to, gives in self.rules if proofs.get((premise, True)) == step - 1}
            proofs.update({claim: step for claim in new if claim not in proofs})
        return proofs

    def _longest_chain(self, trait: str) -> int:
        return max((1 + self._longest_chain(premise) for premise, to, _ in self.rules if to == trait), default=0)


def _draw_theory(rng: random.Random) -> Theory:
    """A random theory without cycles; half of them hold one long chain, so that deep questions are not rare."""
    traits = rng.sample(TRAITS, TRAITS_PER_THEORY)
    if rng.random() < 0.5:
        steps = [(i, i + 1) for i in range(TRAITS_PER_THEORY - 1)]
    else:
        steps = rng.sample([(i, j) for j in range(TRAITS_PER_THEORY) for i in range(j)], RULES_PER_THEORY)
    rng.shuffle(steps)
    facts = tuple((trait, rng.random() < 0.8) for trait in rng.sample(traits[:4], 2))
    rules = tuple((traits[i], traits[j], rng.random() < (0.6 if j > 2 else 0.8)) for i, j in steps)
    return Theory(person=rng.choice(PEOPLE), facts=facts, rules=rules)


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A claim about a theory with its answer; ``depth`` as in :meth:`Theory.answers`."""

    theory: Theory
    trait: str
    label: str
    depth: int


def _balanced(rng: random.Random, per_theory: int) -> Iterator[list[Question]]:
    """``per_theory`` questions about one theory after the other, the labels and depths rarest so far first."""
    counts = Counter({(label, depth): 0 for label in LABELS for depth in DEPTHS})
    while True:
        theory = _draw_theory(rng)
        answers = theory.answers()
        if answers is None:
            continue
        offered = [(trait, cell) for trait, cell in sorted(answers.items()) if cell in counts]
        rng.shuffle(offered)
        offered.sort(key=lambda entry: counts[entry[1]])
        asked = offered[:per_theory]
        counts.update(cell for _, cell in asked)
        yield [Question(theory=theory, trait=trait, label=label, depth=depth) for trait, (label, depth) in asked]


def _claim(question: Question) -> str:
    return f"claim {question.trait} ?"


@cache
def evaluation_questions(seed: int) -> tuple[Question, ...]:
    """``ITEMS_PER_CELL`` questions of each label at each depth; at most two ask about the same theory."""
    room = Counter({(label, depth): ITEMS_PER_CELL for label in LABELS for depth in DEPTHS})
    chosen: list[Question] = []
    for questions in _balanced(random.Random(f"rules items {seed}"), QUESTIONS_PER_THEORY):
        for question in questions:
            if room[question.label, question.depth]:
                room[question.label, question.depth] -= 1
                chosen.append(question)
        if not any(room.values()):
            break
    return tuple(chosen)


def evaluation_docs(world: World) -> list[Doc]:
    """600 items with a column ``depth``; items about the same theory form a cluster."""
    return [
        choice_doc(
            query=f"{question.theory.text} {_claim(question)}",
            choices=LABELS,
            gold=LABELS.index(question.label),
            cluster=content_hash({"theory": question.theory.text}),
            depth=question.depth,
        )
        for question in evaluation_questions(world.seed)
    ]


def training_texts(world: World, rng: random.Random, unsure: bool) -> Iterator[TrainingText]:
    """Questions about theories that no evaluation item holds, in any order of telling, without end."""
    held_out = {question.theory.key for question in evaluation_questions(world.seed)}
    for questions in _balanced(rng, QUESTIONS_PER_TRAINING_TEXT):
        if questions[0].theory.key not in held_out:
            first, *others = questions
            yield TrainingText(
                (
                    (f"{first.theory.text} {_claim(first)}", first.label),
                    *((_claim(question), question.label) for question in others),
                )
            )
