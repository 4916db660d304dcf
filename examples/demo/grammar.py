"""Reads a domain file and turns it into texts with questions; it knows nothing of SQuAD's JSON.

A domain file has values and facts:

    ship : name = <vessel>                    a value, its kind, and how it is made
    launch : year = <after keel 1 3>          one to three years after the value `keel`
    cargo : thing = [salt herring|pine planks]  one of the alternatives

    fact                                      the first fact always opens the text
    - The {ship} [was launched|left the slip] in {launch}.
    - In {launch} the {ship} took to the water.
    ~ the launch of the ship | the day the ship was launched
    ? launch In what year was the {ship} launched? | When did the ship first float?

`-` lines are forms of the same sentence, `?` lines give the wordings that ask for a value, and the `~` line
names the fact, for questions such as "As for the launch of the ship, ...". `{captain.last}` is the last word
of a value. The last form and the last wording of each fact are kept for the dev texts, which often take them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from lexicon import Draw

SLOT = re.compile(r"\{([a-z_]+)(\.last)?\}")
CHOICE = re.compile(r"\[([^\[\]]*)\]")
MAKER = re.compile(r"<([^<>]+)>")
FEWEST_QUESTIONS, MOST_QUESTIONS = 13, 16
MOST_COMMON = 2
FEWEST_WORDS, MOST_WORDS = 90, 150
NEW_IN_DEV = 0.35  # how often a dev text takes a form or wording that training has not seen
PLAINEST = 0.3  # how often the first form is taken without looking further
# how often a question says when, or else of whom or where, or else of what it speaks
WITH_YEAR, WITH_NAME, WITH_TOPIC = 0.3, 0.3, 0.8
NAMES = ("person", "place", "org", "name")
OPENINGS = ("Regarding", "As for", "Concerning", "With regard to")


@dataclass(frozen=True)
class Value:
    """How a value of a domain is made. `kind` says what sort of answer it is (person, year, reason, ...)."""

    key: str
    kind: str
    pattern: str


@dataclass(frozen=True)
class Fact:
    """One statement: its sentence forms, what it is about, and the wordings that ask for each value."""

    forms: tuple[str, ...]
    topics: tuple[str, ...]
    questions: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Domain:
    """A subject that texts are written about, as read from one file."""

    name: str
    values: tuple[Value, ...]
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Span:
    """A value as it stands in a text: characters [start, start + len(text))."""

    key: str
    kind: str
    text: str
    start: int
    whole: bool


@dataclass(frozen=True)
class Question:
    """A question and the span that answers it."""

    text: str
    answer: Span


@dataclass(frozen=True)
class Story:
    """One text with its questions and every value that stands in it."""

    domain: str
    title: str
    context: str
    spans: tuple[Span, ...]
    questions: tuple[Question, ...]


def read_domain(path: Path) -> Domain:
    """Read one domain file.

    Raises:
        ValueError: a line is none of those this module's docstring describes.
    """
    values: list[Value] = []
    facts: list[Fact] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line == "fact":
            facts.append(Fact((), (), {}))
        elif line.startswith("- ") and facts:
            facts[-1] = replace(facts[-1], forms=(*facts[-1].forms, line[2:]))
        elif line.startswith("~ ") and facts:
            facts[-1] = replace(facts[-1], topics=tuple(line[2:].split(" | ")))
        elif line.startswith("? ") and facts:
            key, wordings = line[2:].split(" ", 1)
            facts[-1].questions[key] = tuple(wordings.split(" | "))
        elif match := re.fullmatch(r"(\w+) : (\w+) = (.+)", line):
            values.append(Value(*match.groups()))
        else:
            raise ValueError(f"{path}:{number}: not a value, fact, form or question: {line!r}")
    return Domain(path.stem, tuple(values), tuple(facts))


def write_story(domain: Domain, common: Domain, draw: Draw, dev: bool) -> Story:
    """Draw the values of one text, choose and order its sentences, and ask about it.

    `common` has the facts that suit any domain; up to two of them are mixed in.
    """
    values = _draw_values((*domain.values, *common.values), draw)
    kinds = {v.key: v.kind for v in (*domain.values, *common.values)}
    mixed_in = draw.shuffled(common.facts)[: draw.between(0, MOST_COMMON)]
    own = draw.shuffled(domain.facts[1:])[: 7 - len(mixed_in)]
    context, spans, told = "", [], []
    aim = draw.between(FEWEST_WORDS + 2, MOST_WORDS - 40)
    for fact in [domain.facts[0], *draw.shuffled([*mixed_in, *own])]:
        if len(context.split()) >= aim:
            break
        sentence, inside = _fill(_pick(fact.forms, draw, dev), values, kinds, draw)
        if len(f"{context} {sentence}".split()) > MOST_WORDS:
            continue
        offset = len(context) + 1 if context else 0
        context = f"{context} {sentence}" if context else sentence
        moved = [Span(s.key, s.kind, s.text, s.start + offset, s.whole) for s in inside]
        spans += moved
        told.append((fact, moved))
    questions = _ask(told, values, draw, dev)
    return Story(domain.name, values[domain.values[0].key], context, tuple(spans), tuple(questions))


def _ask(
    told: list[tuple[Fact, list[Span]]], values: dict[str, str], draw: Draw, dev: bool
) -> list[Question]:
    """One question for each value, then second wordings until the text has enough."""
    asked = [
        (fact, span, spans)
        for fact, spans in told
        for span in spans
        if span.whole and span.key in fact.questions
    ]
    questions: dict[str, Question] = {}
    wanted = draw.between(FEWEST_QUESTIONS, MOST_QUESTIONS)
    for _ in range(2):
        for fact, span, spans in draw.shuffled(asked):
            if len(questions) == wanted:
                break
            text = _say(_pick(fact.questions[span.key], draw, dev), values, draw)
            text = _placed(text, span, spans, _say(_pick(fact.topics, draw, dev), values, draw), draw)
            questions.setdefault(text, Question(text, span))
    return list(questions.values())


def _placed(question: str, answer: Span, spans: list[Span], topic: str, draw: Draw) -> str:
    """The question, often opened by what else its answer's sentence names, or by what that speaks of."""
    lower = question[0].lower() + question[1:]
    times = [s for s in spans if s.kind in ("year", "date")]
    named = [s for s in spans if s.kind in NAMES and s.whole and s.text not in question and s != answer]
    opening = draw.choice(OPENINGS)
    if len(times) == 1 and times[0] != answer and draw.chance() < WITH_YEAR:
        return f"{'In' if times[0].kind == 'year' else 'On'} {times[0].text}, {lower}"
    if named and draw.chance() < WITH_NAME:
        return f"{opening} {draw.choice(named).text}, {lower}"
    if answer.text not in topic and draw.chance() < WITH_TOPIC:
        return f"{opening} {topic}, {lower}"
    return question


def _draw_values(recipe: tuple[Value, ...], draw: Draw) -> dict[str, str]:
    values: dict[str, str] = {}
    years: set[int] = set()

    def made(match: re.Match[str]) -> str:
        kind, *arguments = match.group(1).split()
        if kind in ("year", "after"):
            base = int(values[arguments.pop(0)]) if kind == "after" else 0
            low, high = (base + int(a) for a in arguments)
            free = [y for y in range(low, high + 1) if y not in years] or [high]
            years.add(year := draw.choice(free))
            return str(year)
        return draw.make(kind, *arguments)

    for value in recipe:
        pattern = _choose(value.pattern, draw)
        pattern = SLOT.sub(lambda m: _shown(values, m), pattern)
        values[value.key] = MAKER.sub(made, pattern)
    return values


def _shown(values: dict[str, str], match: re.Match[str]) -> str:
    value = values[match.group(1)]
    return value.split()[-1] if match.group(2) else value


def _choose(pattern: str, draw: Draw) -> str:
    """Settle every [a|b] in a pattern, innermost first."""
    while match := CHOICE.search(pattern):
        chosen = draw.choice(match.group(1).split("|"))
        pattern = pattern[: match.start()] + chosen + pattern[match.end() :]
    return re.sub(r" +(?=[ ,.;])", "", pattern)


def _pick(forms: tuple[str, ...], draw: Draw, dev: bool) -> str:
    """One of the forms, the first (the plainest) more often; the last one is never seen in training."""
    if dev and draw.chance() < NEW_IN_DEV:
        return forms[-1]
    return forms[0] if draw.chance() < PLAINEST else draw.choice(forms[:-1])


def _say(form: str, values: dict[str, str], draw: Draw) -> str:
    """A question or topic with its values filled in."""
    return SLOT.sub(lambda m: _shown(values, m), _choose(form, draw))


def _fill(form: str, values: dict[str, str], kinds: dict[str, str], draw: Draw) -> tuple[str, list[Span]]:
    """Put the values into a sentence form and note where each one stands."""
    form = _choose(form, draw)
    text, spans, end = "", [], 0
    for match in SLOT.finditer(form):
        text += form[end : match.start()]
        shown = _shown(values, match)
        if not text:
            shown = shown[0].upper() + shown[1:]
        key = match.group(1)
        spans.append(Span(key, kinds[key], shown, len(text), not match.group(2)))
        text, end = text + shown, match.end()
    text += form[end:]
    return text[0].upper() + text[1:], spans
