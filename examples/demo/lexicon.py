"""The words the demo's names, dates and numbers are made of, and how they are put together.

Nothing here knows of sentences, questions or JSON. Every list of name parts is cut in two: the training
texts draw from one part, the dev texts from the other, so no person, town, river or ship is in both.
Only `random.Random.random()` is used, the one method whose sequence Python promises to keep.
"""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

GIVEN = """
Ada Albin Alma Anselm Aurelia Barnaby Beatrix Benedikt Bridget Caleb Carmen Cecily Clara Conrad Daphne
Dario Desmond Dorothea Edmund Edwin Elena Elias Elspeth Emil Esther Felix Fiona Florian Frances Gideon
Giulia Greta Hannah Harold Harriet Hector Helga Henrik Hugo Ida Ignatius Imogen Ines Isaac Isolde Ivor
Jasper Joachim Josephine Judith Julian Karin Katarina Lambert Laura Leander Leopold Lorna Lucius Lydia
Magnus Marcus Margit Marta Matilda Maurice Mercy Mina Miriam Nadia Nathan Nell Nicolas Nora Octavia Olga
Oscar Oswald Otto Paloma Percy Petra Philippa Quentin Rafael Ralph Rebecca Reuben Roland Rosalind Rufus
Ruth Sabina Samuel Selma Silas Simone Stefan Stella Susanna Tabitha Tamsin Theodore Thora Tobias Ulrika
Ursula Valentin Vera Victor Viola Walter Wanda Wilfred Winifred Xavier Yvonne Zachary Zelda
""".split()

SURNAMES = """
Abernal Alcott Amsler Ancroft Ashdown Bagley Balfour Bannick Barlow Beckwith Bellamy Berglund Birtwell
Blackmore Bonham Brandt Brightwell Calder Carrick Castellan Chadwick Clegg Colby Corrigan Crane Dahlgren
Danforth Delacourt Dempster Drummond Dunmore Eastlake Eckhart Ellery Engel Fairbank Falkner Farrow Fenwick
Finch Forsberg Fothergill Gadsby Galbraith Garland Gilmour Granger Greaves Grimshaw Hadley Halloran
Hargreave Haskell Hathaway Holloway Hornby Huxtable Ingram Ironside Jardine Jessop Kendrick Kessler
Kettering Kirkby Lancing Langford Larkin Lindqvist Lockhart Lovell Maddox Marchetti Marlowe Mayhew
Merriman Montrose Mortlake Naismith Nettleton Norrell Oakley Okafor Ormond Osgood Pemberton Pettigrew
Pickering Prescott Quayle Radley Ramsden Ravensworth Redfern Renshaw Ridley Rossiter Rowntree Sackett
Salter Sandoval Schofield Sedgwick Selby Shackle Silvera Skelton Somerby Stanhope Starling Strand
Sutcliffe Tallis Tennant Thackray Thornbury Tolland Tremaine Underhill Vance Varga Verrill Wainwright
Wakeley Walden Warrick Weatherby Westcott Whitlock Wickham Winslow Woodruff Yardley Zimmer
""".split()

PLACE_FRONTS = """
Alder Amber Apple Arden Ash Barrow Beech Black Bram Brook Buck Burn Calder Cran Crow Dun Elder Elm Fal
Fern Fox Glen Gold Gran Hal Harrow Hart Hazel Heather Hollin Kel Kings Lang Lark Lin Loch Mar Mel Mill
Moss Neth North Oak Otter Pen Plum Quar Raven Red Rook Rush Salt Sedge Sel Shel Silver Stan Stone Sum Swan
Tarn Thorn Tid Ul Wal Wether Whit Wil Wind Wool Yar
""".split()
PLACE_BACKS = """
beck borough bourne bridge bury by combe cote dale den field ford gate grove ham haven head holt hurst
leigh mere minster mouth port shaw stead stoke thorpe ton wick wood worth
""".split()

SYLLABLE_FRONTS = """
Ar Bel Cor Dal Dor Es Fen Gar Hal Is Jor Kar Lam Lor Mal Mor Nar Ner Or Pal Quen Ras Sar Sil Tal Tor Um
Val Ver Vor Wen Zan Zel
""".split()
SYLLABLE_MIDDLES = "a e i o u an ar en er il in ol on ov um ak el ith ess and".split()
SYLLABLE_BACKS = "da dra la lia mar mia na nia ra ria sa sta ta tha va via".split()

ADJECTIVES = """
Amber Ancient Bold Bright Copper Crimson Distant Eastern Faithful Gentle Gilded Golden Grey Hidden Honest
Iron Ivory Lonely Merry Midnight Northern Patient Proud Quiet Restless Royal Scarlet Silver Southern
Steadfast Swift Velvet Wandering Western Winter
""".split()
NOUNS = """
Anchor Arrow Beacon Compass Crown Curlew Dolphin Falcon Garnet Gull Harbour Harvest Heron Horizon Lantern
Linnet Meadow Mirror Orchard Osprey Pilgrim Plover River Robin Shepherd Sparrow Spring Star Swallow Tern
Thistle Voyager Willow Wren
""".split()

MONTHS = "January February March April May June July August September October November December".split()
SMALL = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
)
WORDS = ["zero", "one", *SMALL.split(), "eighteen", "nineteen", "twenty"]


def part(words: Sequence[T], split: str) -> list[T]:
    """The words that `split` ("train" or "dev") may use: every fourth belongs to dev, the rest to train."""
    return [w for i, w in enumerate(words) if (i % 4 == 3) == (split == "dev")]


class Draw:
    """A source of names, numbers and choices for one text; it does not give the same name twice.

    Args:
        seed: any integer; the same seed and split give the same draws on every Python.
        split: "train" or "dev", which half of the lexicon to draw from.
    """

    def __init__(self, seed: int, split: str) -> None:
        self._random = random.Random(seed)
        self._split = split
        self._used: set[str] = set()
        self._makers: dict[str, Callable[..., str]] = {
            "person": self._person,
            "surname": lambda: self._own(SURNAMES),
            "town": self._town,
            "land": self._land,
            "vessel": lambda: f"{self._own(ADJECTIVES)} {self.choice(NOUNS)}",
            "coined": self._land,
            "int": lambda low, high: str(self.between(int(low), int(high))),
            "big": lambda low, high: f"{self.between(int(low), int(high)) * 10:,}",
            "words": lambda low, high: WORDS[self.between(int(low), int(high))],
            "date": lambda: f"{self.between(1, 28)} {self.choice(MONTHS)}",
        }

    def chance(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self.chance() * (high - low + 1))

    def choice(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[int(self.chance() * len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """A new list of the items in random order."""
        keyed = [(self.chance(), i) for i in range(len(items))]
        return [items[i] for _, i in sorted(keyed)]

    def make(self, kind: str, *arguments: str) -> str:
        """A fresh value of a kind, for example make("person") or make("int", "20", "90")."""
        return self.fresh(lambda: self._makers[kind](*arguments))

    def fresh(self, maker: Callable[[], str]) -> str:
        """Call maker until it gives what this text does not hold yet."""
        for _ in range(200):
            value = maker()
            words = {value.split()[-1], value}  # two people of one surname would be confusing
            if not words & self._used:
                self._used |= words
                return value
        raise RuntimeError(f"the lexicon has nothing left like {value!r}")

    def _own(self, words: Sequence[str]) -> str:
        return self.choice(part(words, self._split))

    def _person(self) -> str:
        return f"{self._own(GIVEN)} {self._own(SURNAMES)}"

    def _town(self) -> str:
        front, back = self._own(PLACE_FRONTS), self.choice(PLACE_BACKS)
        style = self.chance()
        if style < 0.08:
            return f"Port {front}{back}"
        if style < 0.16:
            return f"{self.choice(['Great', 'Little', 'Upper', 'Lower'])} {front}{back}"
        return f"{front}{back}"

    def _land(self) -> str:
        middle = self.choice(SYLLABLE_MIDDLES) if self.chance() < 0.6 else ""
        return f"{self._own(SYLLABLE_FRONTS)}{middle}{self.choice(SYLLABLE_BACKS)}"
