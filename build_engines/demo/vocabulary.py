"""The words of the demo corpus: names of products, values of attributes and sentences about them."""

from __future__ import annotations

# The closing phrase of each kind of product, and the names of its products. Accents, CJK and emoji (some with several
# code points) test streaming: tokens end inside their bytes.
KINDS: dict[str, tuple[str, ...]] = {
    "Enjoy every sip ☕": (
        "moka pot",
        "teapot",
        "café press",
        "matcha whisk",
        "yerba maté gourd",
        "抹茶 bowl",
    ),
    "Bon appétit 👩‍🍳": (
        "crème brûlée torch",
        "fondue set",
        "tajine",
        "paella pan",
        "soufflé dish",
        "餃子 steamer",
    ),
    "Let's eat 🍜": (
        "ramen bowl",
        "jalapeño roaster",
        "rice cooker",
        "phở ladle",
        "chopstick set",
        "김치 jar",
    ),
    "Sweet dreams 🌙": ("night lamp", "duvet", "pillow", "alarm clock", "lit d'appoint", "bedside table"),
    "See you outside 🏕️": ("tent", "hammock", "lantern", "camping stove", "backpack", "thermos flask"),
    "Happy writing ✍️": ("fountain pen", "notebook", "desk organiser", "brush set", "étui", "筆 holder"),
    "Have fun 🎉": ("piñata kit", "board game", "kite", "ukulele", "puzzle", "tambourine"),
    "Grow well 🌱": ("plant pot", "watering can", "herb garden", "bird feeder", "trellis", "盆栽 scissors"),
    "Ride on 🚲": ("bicycle bell", "saddle bag", "helmet", "pannier", "rain cape", "bike light"),
    "谢谢 💛": ("doormat", "coat rack", "vase", "umbrella stand", "mirror", "déco shelf"),
}

STYLES: tuple[str, ...] = (
    "compact", "classic", "foldable", "handmade", "modern", "rustic", "tall", "mini", "double", "round",
    "quiet", "travel", "family", "vintage", "slim", "deluxe", "everyday", "stackable", "naïve", "rétro",
)  # fmt: skip

BRANDS: tuple[str, ...] = (
    "Nørholm", "Maison Élodie", "山田工房", "Café Olé", "Björk & Söner", "한빛", "Atelier Zoé", "Müller",
    "Łąka Works", "Ōkami", "Señor Fuego", "Harbour Lane", "Oak & Iron", "小林", "Ceylan Çelik", "Fjällbo",
    "Old Mill", "São Bento", "Kestrel", "Little Fox",
)  # fmt: skip

# Invented brands consist of these parts, so that the model learns to copy and not to recite.
ONSETS: tuple[str, ...] = (
    "b", "br", "c", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pr", "qu",
    "r", "s", "st", "t", "tr", "v", "w", "x", "y", "z", "ç", "š", "ł",
)  # fmt: skip
VOWELS: tuple[str, ...] = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ou", "é", "ö", "ü", "å", "ø")
CODAS: tuple[str, ...] = ("", "", "", "n", "l", "r", "s", "m", "k", "x", "nd", "rt")

COLOURS: tuple[str, ...] = (
    "midnight blue", "ivory", "crimson", "olive green", "charcoal", "rosé", "saffron yellow", "turquoise",
    "caramel", "lilac", "terracotta", "café au lait", "snow white", "copper red", "mint green", "墨色",
    "桜色", "slate grey", "amber", "deep violet",
)  # fmt: skip

MATERIALS: tuple[str, ...] = (
    "stoneware", "bamboo", "cast iron", "oak", "recycled glass", "linen", "brushed steel", "porcelain",
    "cork", "walnut wood", "copper", "wool felt", "papier-mâché", "beech", "enamel", "clay",
    "organic cotton", "aluminium", "和紙", "titanium",
)  # fmt: skip

ORIGINS: tuple[str, ...] = (
    "京都", "Málaga", "København", "São Paulo", "Zürich", "서울", "Łódź", "Québec", "Reykjavík", "台北",
    "Lisbon", "Cornwall", "Besançon", "Oaxaca", "İzmir", "Hà Nội", "Göteborg", "Kraków", "上海", "Vermont",
)  # fmt: skip

FEATURES: tuple[str, ...] = (
    "dishwasher safe", "easy to clean", "light as a feather", "rechargeable", "waterproof", "built to last",
    "simple to repair", "free of plastic", "quick to set up", "whisper quiet", "child friendly",
    "signed by hand", "solar powered", "scratch proof", "très chic", "heat resistant",
)  # fmt: skip

AUDIENCES: tuple[str, ...] = (
    "slow mornings", "small kitchens", "students", "Sunday brunch", "café lovers", "long journeys",
    "garden parties", "new neighbours", "rainy days", "busy parents", "fiancés", "night owls 🦉",
    "cat people 🐈", "curious minds", "weekend cooks", "お正月",
)  # fmt: skip

# Sentences by attribute. The value determines the sentence, so answers vary and a small model can still predict them.
# A value never starts a sentence, so its tokens are the same as in the prompt.
OPENINGS: tuple[str, ...] = (
    "Meet the {product} by {brand}.",
    "The {product} from {brand} has arrived.",
    "Say hello to the {product} that made {brand} famous.",
    "Here is the {product} of {brand}, ready for a new home.",
    "Our favourite this season is the {product} by {brand}.",
    "Some things stay: the {product} from {brand} is one.",
)
SENTENCES: dict[str, tuple[str, ...]] = {
    "colour": (
        "Its {value} finish catches the light.",
        "In {value} it suits any room.",
        "The {value} tone stays bright for years.",
        "You will love how {value} looks on it.",
    ),
    "material": (
        "It is made of {value} and feels good in the hand.",
        "Honest {value} keeps it strong.",
        "We chose {value}, which ages well.",
        "Nothing but {value} went into it.",
    ),
    "origin": (
        "Every piece comes from {value}.",
        "A small workshop in {value} makes it.",
        "It was born in {value}, where the craft is old.",
        "We ship it straight from {value}.",
    ),
    "feature": (
        "Best of all, it is {value}.",
        "Being {value}, it asks for little.",
        "Naturally it is {value} too.",
        "And yes, it is {value}!",
    ),
    "audience": (
        "Perfect for {value}.",
        "A fine gift for {value}.",
        "Think of {value} and you will want one.",
        "Made with {value} in mind.",
    ),
}
