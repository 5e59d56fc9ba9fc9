"""A shop's catalogue from end to end: 2,000 made-up products in SQLite get their descriptions, with the bill.

    make catalogue                                                   # or, step by step:
    python docs/examples/catalogue.py --out my-catalogue
    python docs/examples/catalogue.py --out my-catalogue --engine my-engine --products 100

Without --engine it fetches SmolLM2 (93 MB) and compiles it first. Broken off, even by kill -9, the same command
continues where it was.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import islice, product
from pathlib import Path

TABLE = """
CREATE TABLE products(
    sku TEXT PRIMARY KEY, product TEXT NOT NULL, brand TEXT NOT NULL, colour TEXT, material TEXT,
    description TEXT, tokens INTEGER
)"""
TEMPLATE = (
    "Write one sentence that describes this product for a shop: {{ product }} of the brand {{ brand }}"
    "{% if colour %}, {{ colour }}{% endif %}{% if material %}, made of {{ material }}{% endif %}."
)
PRODUCTS = (
    *("moka pot", "teapot", "café press", "crème brûlée torch", "fondue set", "ramen bowl", "rice cooker"),
    *("night lamp", "pillow", "alarm clock", "tent", "lantern", "backpack", "fountain pen", "notebook", "board game"),
    *("kite", "ukulele", "plant pot", "watering can", "bird feeder", "bicycle bell", "helmet", "doormat", "vase"),
)
BRANDS = ("Müller", "Oak & Iron", "Maison Léa", "Northlight", "京都工房", "Søren")
COLOURS = (None, "amber", "green", "ivory", "navy blue", "red")
MATERIALS = (None, "bamboo", "copper", "cork", "glass", "wool")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("catalogue"), help="where everything goes")
    parser.add_argument("--products", type=int, default=2000, help="how many, of a new table")
    parser.add_argument("--engine", type=Path, help="an engine directory that is there already")
    parser.add_argument("--price-per-hour", default="0.17", help="what an hour of this machine costs")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    shop = asked.out / "shop.db"
    if not shop.exists():
        make_products(shop, asked.products)
    return describe(shop, asked.engine or make_engine(asked.out), asked.price_per_hour) or show(shop)


def make_products(shop: Path, count: int) -> None:
    """Write a table of up to 5,400 products, no two alike."""
    all_products = list(product(PRODUCTS, BRANDS, COLOURS, MATERIALS))
    random.Random(7).shuffle(all_products)
    rows = [(f"SKU-{number:05}", *values) for number, values in enumerate(islice(all_products, count))]
    new = shop.with_suffix(".new")
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(new)) as database, database:
        database.execute(TABLE)
        database.executemany("INSERT INTO products(sku, product, brand, colour, material) VALUES (?, ?, ?, ?, ?)", rows)
    new.replace(shop)


def make_engine(place: Path) -> Path:
    inflight("build", "smollm2", "--precision", "int8", "--out", str(place / "engine"), check=True)
    return place / "engine"


def describe(shop: Path, engine: Path, price: str) -> int:
    """The job: rows of the table in, descriptions and their tokens back into it, on a server of the job's own."""
    database = f"sqlite:///{shop.resolve()}"
    return inflight(
        *("batch", "run", database, "--table", "products", "--id", "sku"),
        *("--chat", "--template", TEMPLATE, "--max-tokens", "60"),
        *("--out", database, "--column", "description", "--write", "output_tokens=tokens"),
        *("--job", str(shop.with_suffix(".job")), "--ephemeral", str(engine), "--price-per-hour", price),
    )


def show(shop: Path) -> int:
    """A few of the rows, as the shop has them now; the job itself printed the bill."""
    print()
    with closing(sqlite3.connect(shop)) as database:
        for sku, name, description in database.execute("SELECT sku, product, description FROM products LIMIT 3"):
            print(f"{sku} {name}: {description.strip()}")
        (left,) = database.execute("SELECT count(*) FROM products WHERE description IS NULL").fetchone()
    return 1 if left else 0


def inflight(*arguments: str, check: bool = False) -> int:
    """The command that lies beside this Python."""
    command = [str(Path(sys.executable).with_name("inflight")), *arguments]
    return subprocess.run(command, check=check).returncode


if __name__ == "__main__":
    sys.exit(main())
