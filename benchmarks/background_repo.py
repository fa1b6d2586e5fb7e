"""The task that benchmarks/background.py has done in each of its ways, and the repository that it is done in.

A word of the trade is handled in one function somewhere, each of which names the next word that must change with it, so
that the next place is not known before the last one was read. The words that people use are not those of the code:
`README.md` of a package says what one is called now, up to the package that handles it. One of the changes breaks a
test of a module that uses the changed one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Literal

BROKEN = "FAILED"
"""What stands before the name of a test that fails, in the output of `tests/run.py`."""
MODULES = 40
"""In a package."""
TESTS = 60
"""At least; each takes its share of the suite's time."""


Breaks = Literal["drawn", "first", "last", "never"]
"""Which of the changes breaks a test; drawn: any, as likely."""


@dataclass(frozen=True, slots=True)
class Case:
    """`suite_s`: of the whole suite, at full speed."""

    seed: int = 1
    files: int = 2_000
    places: int = 6
    """To be found and changed."""
    hops: tuple[int, int] = (1, 4)
    """Words from the one that the task names to the function, at least and at most."""
    breaks: Breaks = "drawn"
    suite_s: float = 60.0
    named: bool = False
    """The task says where the first place is."""
    right: float = 1.0
    """Of the places, the share that the scout has right."""
    pages: int = 10
    """Package descriptions that the scout reads in one reply."""
    whole_again: bool = True
    """After a repair the whole suite is run once more, not only what failed."""


@dataclass(frozen=True, slots=True)
class Place:
    words: tuple[str, ...]
    """The first one is the one that is asked for."""
    function: str
    path: str
    user: str
    """A module that calls the function."""


@dataclass(frozen=True, slots=True)
class Sample:
    files: Mapping[str, str]
    task: str
    expected: Mapping[str, str]
    """Each file that is to be another one at the end."""
    misread: frozenset[str]
    """Words that the scout has wrong."""


def make_sample(case: Case) -> Sample:
    random = Random(case.seed)
    files = {path: f"VALUE = {number}\n" for number, path in enumerate(_modules(case.files))}
    places = list(_places(case, random, list(files)))
    drawn = random.randrange(case.places)
    broken = {"drawn": drawn, "first": 0, "last": case.places - 1, "never": -1}[case.breaks]
    expected: dict[str, str] = {}
    for number, place in enumerate(places):
        after = places[number + 1].words[0] if number + 1 < len(places) else None
        files[place.path] = _handler(place.function, after)
        expected[place.path] = changed(files[place.path], capped=number == broken)
        files |= _user_and_tests(place, capped=number == broken)
    files |= _descriptions(case, random, places)
    files |= {f"tests/test_more_{number}.py": "def check():\n    assert True\n" for number in range(TESTS)}
    tests = sorted(path for path in files if path.startswith("tests/"))
    for path in tests[TESTS:]:
        if "_more_" in path:
            del files[path]
    count = sum(path.startswith("tests/") for path in files)
    files |= {
        "tests/run.py": RUN,
        "tests/pace": f"{case.suite_s / count}\n",
        "README.md": README,
        ".gitignore": ".wait\n",
    }
    misread = frozenset(place.words[0] for place in places if random.random() >= case.right)
    return Sample(files, _task(case, places[0]), expected, misread)


def changed(text: str, *, capped: bool) -> str:
    text = text.replace("RATE = 5\n", "RATE = 7\n")
    return text.replace(UNCAPPED, CAPPED) if capped else text


UNCAPPED, CAPPED = "    return amount * RATE", "    return min(amount * RATE, 60)"
README = """\
`python3 -B tests/run.py` runs all tests, `python3 -B tests/run.py FILE ...` some. What a package is for, and what the
words of the trade are called now, stands in its `README.md` below `src/`.
"""
RUN = """\
import runpy, sys, time, uuid
from pathlib import Path

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root))
chosen = sys.argv[1:] or sorted(f"tests/{path.name}" for path in (root / "tests").glob("test_*.py"))
(root / ".wait").mkdir(exist_ok=True)
ticket = root / ".wait" / f"{uuid.uuid4()}.ticket"
draft = ticket.with_suffix(".draft")
draft.write_text(str(len(chosen) * float((root / "tests" / "pace").read_text())))
draft.rename(ticket)
while ticket.exists():
    time.sleep(0.01)
failed = 0
for name in chosen:
    try:
        runpy.run_path(str(root / name))["check"]()
    except AssertionError as error:
        failed += 1
        print(f"FAILED {name}: {error}")
print(f"{len(chosen)} run, {failed} failed")
sys.exit(1 if failed else 0)
"""
"""Each test takes its share of the suite's time; when that is over, a clock takes the ticket away."""


def _task(case: Case, first: Place) -> str:
    task = "The rate of 5 becomes 7 in all that goes together. "
    if case.named:
        return f"{task}It begins in {first.path}."
    return f"{task}Begin with what handles '{first.words[0]}'; each place names the next one that must change with it."


def _modules(count: int) -> Iterator[str]:
    for number in range(count):
        yield f"src/p{number // MODULES:03}/m{number % MODULES:02}.py"


def _places(case: Case, random: Random, paths: list[str]) -> Iterator[Place]:
    words = _words(random)
    chosen = iter(random.sample(paths, 2 * case.places))
    for _ in range(case.places):
        count = random.randint(*case.hops)
        own = tuple(next(words) for _ in range(count))
        yield Place(own, f"{own[-1]}_rate", next(chosen), next(chosen))


def _words(random: Random) -> Iterator[str]:
    syllables = [first + second for first, second in product("bdfgklmnprstvz", "aeiou")]
    known: set[str] = set()
    while True:
        word = "".join(random.sample(syllables, 4))
        if word not in known:
            known.add(word)
            yield word


def _handler(function: str, after: str | None) -> str:
    goes = f"With it goes what handles '{after}'." if after else "Nothing goes with it."
    return f'"""{goes}"""\n\nRATE = 5\n\n\ndef {function}(amount):\n{UNCAPPED}\n'


def module_of(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def test_of(path: str) -> str:
    return f"tests/test_{'_'.join(path.removesuffix('.py').split('/')[1:])}.py"


def _user_and_tests(place: Place, *, capped: bool) -> dict[str, str]:
    """The module's own test finds nothing; that of what uses it does, where there is a cap."""
    use, total = f"from {module_of(place.path)} import {place.function}\n\n\n", f"total_{place.function}"
    user = f"{use}def {total}(amounts):\n    return sum({place.function}(amount) for amount in amounts)\n"
    why = f"{place.function}(10) gives {{found}}, at most 60 is right, see {place.path}"
    far = f"    found = {total}([10])\n    assert found <= {60 if capped else 100}, f'{why}'\n"
    return {
        place.user: user,
        test_of(place.path): f"{use}def check():\n    assert {place.function}(0) == 0\n",
        test_of(place.user): f"from {module_of(place.user)} import {total}\n\n\ndef check():\n{far}",
    }


def _descriptions(case: Case, random: Random, places: list[Place]) -> dict[str, str]:
    """One a package, with the words that are asked for among others."""
    words = _words(random)
    lines: dict[int, list[str]] = {number: [] for number in range(-(-case.files // MODULES))}
    for package in lines:
        lines[package] = [
            f"'{next(words)}' is handled in src/p{package:03}/m{random.randrange(MODULES):02}.py by {next(words)}_rate"
            for _ in range(10)
        ]
    for place in places:
        for word, later in zip(place.words, place.words[1:], strict=False):
            lines[random.choice(list(lines))].append(f"'{word}' is called '{later}' now")
        package = int(place.path[5:8])
        lines[package].append(f"'{place.words[-1]}' is handled in {place.path} by {place.function}")
    for found in lines.values():
        random.shuffle(found)
    return {f"src/p{package:03}/README.md": "\n".join(found) + "\n" for package, found in lines.items()}
