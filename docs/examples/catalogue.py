"""A shop's catalogue from end to end: 2,000 made-up products in SQLite get their descriptions, and the bill is told.

    make catalogue                                                   # or, step by step:
    python docs/examples/catalogue.py --out my-catalogue
    python docs/examples/catalogue.py --out my-catalogue --engine my-engine --products 100

Without --engine it trains the demo checkpoint and compiles it first, about two minutes on two cores. Broken off, even
by kill -9, the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import astuple
from pathlib import Path

from build_engines.demo import unseen_attribute_sets

TABLE = """
CREATE TABLE products(
    sku TEXT PRIMARY KEY, product TEXT NOT NULL, brand TEXT NOT NULL,
    colour TEXT, material TEXT, origin TEXT, feature TEXT, audience TEXT,
    description TEXT, tokens INTEGER
)"""
# What the demo checkpoint was trained to complete; columns that a product has no value for are left out.
TEMPLATE = (
    "Product: {{ product }} | Brand: {{ brand }} | "
    "{% if colour %}Colour: {{ colour }} | {% endif %}"
    "{% if material %}Material: {{ material }} | {% endif %}"
    "{% if origin %}Origin: {{ origin }} | {% endif %}"
    "{% if feature %}Feature: {{ feature }} | {% endif %}"
    "{% if audience %}Audience: {{ audience }} | {% endif %}"
    "Description:"
)


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
    """Products of the project's own word lists, none of which the demo checkpoint was trained on."""
    rows = [
        (f"SKU-{number:05}", *astuple(product)) for number, product in enumerate(unseen_attribute_sets(count, seed=7))
    ]
    new = shop.with_suffix(".new")
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(new)) as database, database:
        database.execute(TABLE)
        columns = "sku, product, brand, colour, material, origin, feature, audience"
        database.executemany(f"INSERT INTO products({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    new.replace(shop)


def make_engine(place: Path) -> Path:
    checkpoint, engine = place / "checkpoint", place / "engine"
    if not (checkpoint / "config.json").is_file():
        inflight("checkpoint", "demo", "--out", str(checkpoint), check=True)
    inflight("build", str(checkpoint), "--out", str(engine), check=True)
    return engine


def describe(shop: Path, engine: Path, price: str) -> int:
    """The job: rows of the table in, descriptions and their tokens back into it, on a server of the job's own."""
    database = f"sqlite:///{shop.resolve()}"
    return inflight(
        *(
            "batch",
            "run",
            database,
            "--table",
            "products",
            "--id",
            "sku",
            "--template",
            TEMPLATE,
            "--max-tokens",
            "160",
        ),
        *("--out", database, "--column", "description", "--write", "output_tokens=tokens"),
        *("--job", str(shop.with_suffix(".job")), "--ephemeral", str(engine), "--price-per-hour", price),
    )


def show(shop: Path) -> int:
    """A few of the rows, as the shop has them now; the bill was told by the job itself."""
    print()
    with closing(sqlite3.connect(shop)) as database:
        for sku, product, description in database.execute("SELECT sku, product, description FROM products LIMIT 3"):
            print(f"{sku} {product}: {description.strip()}")
        (left,) = database.execute("SELECT count(*) FROM products WHERE description IS NULL").fetchone()
    return 1 if left else 0


def inflight(*arguments: str, check: bool = False) -> int:
    """The command that lies beside this Python."""
    command = [str(Path(sys.executable).with_name("inflight")), *arguments]
    return subprocess.run(command, check=check).returncode


if __name__ == "__main__":
    sys.exit(main())
