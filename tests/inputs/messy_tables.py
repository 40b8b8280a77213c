"""Tables as people have them, each made from one clean table, so that the right fit is known.

``CLEAN`` is the table, in Parquet with proper types. Each entry of ``MESSY`` writes it as another
program, country or habit would, and says what should come of it: a right fit at once, or one
sentence whose options make it one.
"""

import csv
import datetime
import gzip
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SHOPS = ["Zürich", "Köln", "Paris", "Málaga", "Łódź", "Oslo"]
WESTERN = ["Zürich", "Köln", "Paris", "Málaga", "Århus", "Oslo"]  # all in Latin-1
NUMBERS = ("price", "visitors", "share", "sales")


def clean_table():
    """Text, a date, numbers below and above a thousand, a boolean and a code; 240 rows."""
    rng = np.random.default_rng(20)
    n, shop = 240, np.repeat(np.arange(6), 40)
    when = datetime.date(2024, 1, 1) + np.arange(n) * datetime.timedelta(days=1)
    price = np.round(rng.uniform(0.5, 99, n), 2)
    visitors = np.round(rng.uniform(1000, 98_000, n), 1)
    share = np.round(rng.uniform(1, 99, n), 1)
    member = rng.uniform(size=n) < 0.4
    kind = np.array(["small", "medium", "large"])[rng.integers(0, 3, n)]
    code = rng.integers(1, 5, n)
    noise = rng.normal(size=n)
    sales = 2000 + 300 * shop + price * (3 + shop) + visitors / 100 + share + 50 * member
    sales = np.round(sales + 20 * (kind == "large") + 5 * code + noise, 2)
    order = rng.permutation(n)
    columns = {
        "shop": [SHOPS[i] for i in shop], "when": when.tolist(), "price": price.tolist(),
        "visitors": visitors.tolist(), "share": share.tolist(), "member": member.tolist(),
        "kind": kind.tolist(), "code": code.tolist(), "sales": sales.tolist(),
    }  # fmt: skip
    return {name: [values[i] for i in order] for name, values in columns.items()}


CLEAN = clean_table()
N_ROWS = len(CLEAN["sales"])
LACKING = np.arange(7, N_ROWS, 40)  # rows that lack a value, where some do


def plain(value):
    """A value as clean CSV has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def text_of(columns=CLEAN, **formats):
    """Cells as text; ``formats`` are functions by column, or by "numbers"."""
    out = {}
    for name, values in columns.items():
        default = formats.get("numbers", plain) if name in NUMBERS else plain
        out[name] = [formats.get(name, default)(value) for value in values]
    return out


def with_gaps(mark, *names, columns=None):
    """Text with a mark in some rows of some columns."""
    columns = text_of() if columns is None else columns
    gaps = set(LACKING.tolist())
    return {
        name: [mark if i in gaps and name in names else v for i, v in enumerate(values)]
        for name, values in columns.items()
    }


def added(first=False, **more):
    """Text with a further column of values."""
    columns = text_of()
    more = {name.replace("_", " "): list(map(str, values)) for name, values in more.items()}
    return more | columns if first else columns | more


def renamed(columns, **names):
    return {names.get(name, name): values for name, values in columns.items()}


def lines(columns, delimiter=",", end="\n", quoting=csv.QUOTE_MINIMAL):
    """Columns as CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerows([columns, *zip(*columns.values(), strict=True)])
    return text.getvalue()


@dataclass(frozen=True)
class Messy:
    """A messy table and the right answer to it."""

    write: Callable  # (folder) -> path
    add: str = ""  # options that make the fit right; nothing if it is right at once
    warns: bool = False  # whether they are suggested by a warning, and not by an error
    task: str = "shop"
    target: str = "sales"
    rows: np.ndarray = field(default_factory=lambda: np.arange(N_ROWS))  # of CLEAN, in the fit
    tasks: Callable = str  # labels of CLEAN to those of the table
    categorical: bool = False  # whether the code of CLEAN is a category


MESSY = {}
COMPLETE = np.delete(np.arange(N_ROWS), LACKING)


def table(name, data, add="", ending=".csv", encoding="utf-8", **more):
    """Register a table of text or bytes."""

    def write(folder):
        path = folder / f"t{ending}"
        raw = data() if callable(data) else data
        raw = raw.encode(encoding) if isinstance(raw, str) else raw
        path.write_bytes(gzip.compress(raw) if ending.endswith(".gz") else raw)
        return path

    MESSY[name] = Messy(write, add, **more)


# ---- delimiters, line ends, encodings ------------------------------------------------------------

TEXT = lines(text_of())
table("clean", TEXT)
table("semicolons", lines(text_of(), ";"))
table("tabs in .txt", lines(text_of(), "\t"), ending=".txt")
table("tabs in .tsv", lines(text_of(), "\t"), ending=".tsv")
table("pipes", lines(text_of(), "|"))
table("spaces in .txt", lines(text_of(), " ", quoting=csv.QUOTE_NONNUMERIC), ending=".txt")
table("an ending in capitals", TEXT, ending=".CSV")
table("gzip", TEXT, ending=".csv.gz")
table("CRLF", lines(text_of(), end="\r\n"))
table("CR of an old Mac", lines(text_of(), end="\r"))
table("two kinds of line ends", lambda: TEXT.replace("\n", "\r\n", 100))
table("a byte order mark", TEXT, encoding="utf-8-sig")
table("UTF-16", lines(text_of(), "\t"), ending=".txt", encoding="utf-16")
table("UTF-16, big-endian", "\ufeff" + TEXT, encoding="utf-16-be")
table("UTF-16 without a mark", TEXT, encoding="utf-16-le")
west = dict(zip(SHOPS, WESTERN, strict=True))
LATIN = lines(renamed(text_of(shop=west.get), sales="Umsätze"))
table("Latin-1", LATIN, "--encoding latin-1", encoding="latin-1", target="Umsätze", tasks=west.get)
table("Windows-1252", LATIN.replace("large", "l €"), "--encoding cp1252", encoding="cp1252",
      target="Umsätze", tasks=west.get)  # fmt: skip
table("Latin-1, compressed", LATIN, "--encoding latin-1", ending=".csv.gz", encoding="latin-1",
      target="Umsätze", tasks=west.get)  # fmt: skip

# ---- lines that are no rows, names ---------------------------------------------------------------

table("a title", "Sales of our shops in 2024\n\n" + TEXT)
table("a title with commas", "Sales, by shop\n" + TEXT)
ABOVE = "Sales report;;;;;;;;\nPrinted;2024-12-31;;;;;;;\n;;;;;;;;\n"
table("a title from a spreadsheet", ABOVE + lines(text_of(), ";"))
table("Excel's line of the delimiter", "sep=;\n" + lines(text_of(), ";"))
table("comments at the top", "# exported by till, version 3, on 2024-12-31\n# no VAT\n" + TEXT)
table("empty lines", TEXT.replace("\n", "\n\n"))
table("empty lines at the top", "\n\n" + TEXT)
table("a delimiter at the end of each line", TEXT.replace("\n", ",\n"))
table(
    "a delimiter at the end of each row", lambda: TEXT.replace("\n", ",\n").replace(",\n", "\n", 1)
)
table("lines of delimiters", lambda: TEXT + "," * 8 + "\n" + "," * 8 + "\n", "--missing drop")


def short_lines():
    rows = TEXT.splitlines()
    for i in LACKING:
        rows[1 + i] = rows[1 + i].rsplit(",", 2)[0]
    return "\n".join(rows)


table("short lines", short_lines, "--missing drop", rows=COMPLETE)
TOTALS = [f"{sum(CLEAN[name]):.2f}" if name in NUMBERS else "" for name in CLEAN]
table("a total at the bottom", TEXT + ",".join(["Total", *TOTALS[1:]]), "--missing drop")
table("a total without a word", TEXT + ",".join(TOTALS), "--missing drop")
SPACED = renamed(text_of(), visitors="number of visitors", shop="the shop")
table("names with spaces", lines(SPACED), task="the shop")
table("spaces around names and values", TEXT.replace(",", " , "))
ALIGNED = [",".join(f"{cell:>12}" for cell in row) for row in csv.reader(TEXT.splitlines())]
table("values in columns of equal width", "\n".join(ALIGNED))
SOME = {"shop": "Oslo", "kind": "small"}
STRAY = {
    name: [f" {v} " if v == SOME.get(name) and i % 3 else v for i, v in enumerate(values)]
    for name, values in text_of().items()
}
table("spaces around some values", lines(STRAY))
table("two columns of one name", lambda: lines(added(price_again=CLEAN["price"]))
      .replace("price again", "price"), "--drop price.1")  # fmt: skip
table("the target twice", lambda: lines(added(sales_again=CLEAN["sales"]))
      .replace("sales again", "sales"), "--drop sales.1")  # fmt: skip

# ---- index columns -------------------------------------------------------------------------------

INDEX = list(range(N_ROWS))
ONES = [i + 1 for i in INDEX]
table("the index of pandas", lines(added(first=True, x=INDEX)).replace("x,", ",", 1))
table(
    "the index of pandas, twice", lines(added(first=True, x=INDEX)).replace("x,", "Unnamed: 0,", 1)
)
table("row names of R's write.csv",
      lines(renamed(added(first=True, x=ONES), x=""), quoting=csv.QUOTE_ALL))  # fmt: skip
table("row names of R's write.table", lines(added(first=True, x=[f"row {i}" for i in ONES]), " ",
      quoting=csv.QUOTE_ALL).replace('"x" ', "", 1), ending=".txt")  # fmt: skip
table("rows numbered from 0", lines(added(first=True, id=INDEX)), "--drop id", warns=True)
table("rows numbered from 1", lines(added(nr=ONES)), "--drop nr", warns=True)

# ---- numbers -------------------------------------------------------------------------------------


def decimal_comma(value):
    return str(value).replace(".", ",")


def grouped(thousands, decimal="."):
    """Numbers such as 1,234.5, with these signs."""

    def write(value):
        return f"{value:,}".translate(str.maketrans({",": thousands, ".": decimal}))

    return write


table("decimal commas", lines(text_of(numbers=decimal_comma), ";"), "--decimal ,")
table("decimal commas in quotes", lines(text_of(numbers=decimal_comma)), "--decimal ,")
table("decimal commas in one column", lines(text_of(price=decimal_comma), ";"), "--decimal ,")
table("1,234.5", lines(text_of(numbers=grouped(","))), "--thousands ,")
table("1.234,5", lines(text_of(numbers=grouped(".", ",")), ";"), "--decimal , --thousands .")
table("1 234,5", lines(text_of(numbers=grouped(" ", ",")), ";"), "--decimal , --thousands ' '")
table("1 234,5 with hard spaces", lines(text_of(numbers=grouped("\u00a0", ",")), ";"),
      "--decimal , --thousands ' '")  # fmt: skip
table("1'234.5", lines(text_of(numbers=grouped("'"))), '--thousands "\'"')
GROUPED = text_of(numbers=decimal_comma, code=lambda v: f"{1000 * v:,}".replace(",", "."))
table("decimal commas, grouped whole numbers", lines(GROUPED, ";"), "--decimal , --thousands .")
POINTS = text_of(price=decimal_comma, share=lambda v: f"{v / 20:.3f}")
table("decimal commas beside points", lines(POINTS, ";"), "--decimal ,")
SIGNED = lines(text_of(price=decimal_comma, visitors=lambda v: f"{v - 5000:.1f}",
                       share=lambda v: f"{v / 20 - 1:.3f}"), ";")  # fmt: skip
table("decimal commas beside points and signs", SIGNED, "--decimal ,")
BOTH = text_of(price=decimal_comma, visitors=grouped(".", ","),
               share=lambda v: f"{v / 20:.3f}")  # fmt: skip
table("1.234,5 beside points", lines(BOTH, ";"), "--decimal , --thousands .")
table("points between thousands", lines(text_of(code=lambda v: f"{250 * v:,}".replace(",", "."))),
      "--decimal , --thousands .", warns=True)  # fmt: skip
table("percent signs", lines(text_of(share=lambda v: f"{v}%")))
table("units", lines(text_of(share=lambda v: f"{v} kg")))
table("dollars", lines(text_of(price=lambda v: f"${v:.2f}")))
table("euros", lines(text_of(numbers=decimal_comma, price=lambda v: decimal_comma(v) + " €"), ";"),
      "--decimal ,")  # fmt: skip
table(
    "scientific notation", lines(text_of(visitors=lambda v: f"{v:.6e}", price=lambda v: f"{v:E}"))
)
table("plus signs", lines(text_of(price=lambda v: f"+{v}", code=lambda v: f"+{v}")))
table("numbers in quotes", lines(text_of(), quoting=csv.QUOTE_ALL))
NUMBERED = {shop: f"{i + 1:03d}" for i, shop in enumerate(SHOPS)}
table("zeros before labels", lines(text_of(shop=NUMBERED.get)), tasks=NUMBERED.get)

CODES = text_of(code=lambda v: f"{v:05d}")
table("zeros before codes", lines(CODES), "--categorical code", warns=True, categorical=True)
table("codes with decimals", lines(text_of(code=lambda v: f"{v}.0")))

# ---- missing values ------------------------------------------------------------------------------

for mark in ("NA", "", "NULL", "#N/A", "n/a", "NaN"):
    table(f"missing: {mark!r}", lines(with_gaps(mark, "price", "visitors")), "--missing drop",
          rows=COMPLETE)  # fmt: skip
for mark in ("-", ".", "unknown", "missing", "k.A."):
    table(f"missing: {mark!r}", lines(with_gaps(mark, "price", "visitors")),
          f"--na-values {mark} --missing drop", rows=COMPLETE)  # fmt: skip
for mark in ("-999", "9999"):
    table(f"missing: {mark}", lines(with_gaps(mark, "price")),
          f"--na-values {mark} --missing drop", warns=True, rows=COMPLETE)  # fmt: skip
table("missing in text and dates", lines(with_gaps("NA", "kind", "when")), "--missing drop",
      rows=COMPLETE)  # fmt: skip
table("missing tasks and targets", lines(with_gaps("", "shop", "sales")), "--missing drop",
      rows=COMPLETE)  # fmt: skip

# ---- booleans, dates, text -----------------------------------------------------------------------


def words(yes, no):
    return lambda value: yes if value else no


for pair in ("yes no", "TRUE FALSE", "ja nein", "1 0", "Y N", "t f", "oui non", "x -"):
    yes, no = pair.split()
    table(f"{yes} and {no}", lines(text_of(member=words(yes, no))))


def dated(pattern):
    return lambda value: value.strftime(pattern)


table("timestamps", lines(text_of(when=dated("%Y-%m-%d 00:00:00"))))
table("timestamps with a zone", lines(text_of(when=dated("%Y-%m-%dT00:00:00Z"))))
for pattern in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d %b %Y", "%Y%m%d"):
    sentence = f"--date when={pattern}" if " " not in pattern else f"--date 'when={pattern}'"
    table(f"dates as {pattern}", lines(text_of(when=dated(pattern))), sentence,
          warns=pattern == "%Y%m%d")  # fmt: skip
table("text of several lines", lines(text_of(kind=lambda v: f'{v}\nand more, "quoted"')))
table("inches", TEXT.replace("medium", 'medium 5"'))
table("long text", lines(text_of(kind=lambda v: v * 3000)))
table("a constant column", lines(added(country=["CH"] * N_ROWS)))
table("a constant number", lines(added(year=[2024] * N_ROWS)))
table("a column without values", lines(added(notes=[""] * N_ROWS)), "--drop notes")
table("remarks", lines(added(remark=[f"customer {i} said so" for i in INDEX])), "--drop remark",
      warns=True)  # fmt: skip

# ---- several of these ----------------------------------------------------------------------------

GERMAN = text_of(numbers=grouped(".", ","), when=dated("%d.%m.%Y"), member=words("ja", "nein"))
GERMAN = lines(with_gaps("-", "price", "visitors", columns=GERMAN), ";", "\r\n")
table("a German export", "Umsätze 2024;;;;;;;;\r\n" + GERMAN, encoding="utf-8-sig", rows=COMPLETE,
      add="--decimal , --thousands . --date when=%d.%m.%Y --na-values - --missing drop",
)  # fmt: skip
BRITISH = text_of(numbers=grouped(","), when=dated("%d/%m/%Y"), member=words("Y", "N"))
table("a British export", lines(with_gaps("n/k", "price", columns=BRITISH)), rows=COMPLETE,
      add="--thousands , --date when=%d/%m/%Y --na-values n/k --missing drop")  # fmt: skip
FRENCH = text_of(numbers=grouped("\u202f", ","), when=dated("%d/%m/%Y"), member=words("oui", "non"),
                 price=lambda v: decimal_comma(v) + "\u00a0€")  # fmt: skip
table("a French export", lines(FRENCH, ";"), encoding="utf-16",
      add="--decimal , --thousands ' ' --date when=%d/%m/%Y")  # fmt: skip
# ---- other formats -------------------------------------------------------------------------------


def sheet_xml(columns, above=()):
    """A worksheet: text inline, numbers and booleans as they are, dates as days in style 1."""

    def cell(value):
        if isinstance(value, bool):
            return f'<c t="b"><v>{int(value)}</v></c>'
        if isinstance(value, datetime.date):
            return f'<c s="1"><v>{(value - datetime.date(1899, 12, 30)).days}</v></c>'
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t>{escape(value)}</t></is></c>' if value else "<c/>"
        return f"<c><v>{value!r}</v></c>"

    rows = [*above, list(columns), *zip(*columns.values(), strict=True)]
    body = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    return (
        '<?xml version="1.0" encoding="UTF-8"?><worksheet xmlns="http://schemas.openxmlformats.org/'
        f'spreadsheetml/2006/main"><sheetData>{body}</sheetData></worksheet>'
    )


def workbook(**sheets):
    """An Excel workbook of these worksheets."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    kinds = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    names = list(enumerate(sheets, start=1))
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Override '
        f'PartName="/xl/workbook.xml" ContentType="{kinds}.sheet.main+xml"/>'
        f'<Override PartName="/xl/styles.xml" ContentType="{kinds}.styles+xml"/>'
        + "".join(f'<Override PartName="/xl/worksheets/sheet{i}.xml" '
                  f'ContentType="{kinds}.worksheet+xml"/>' for i, _ in names) + "</Types>",
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>'
        + "".join(f'<sheet name="{name}" sheetId="{i}" r:id="s{i}"/>' for i, name in names)
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">'
        f'<Relationship Id="st" Type="{office}/styles" Target="styles.xml"/>'
        + "".join(f'<Relationship Id="s{i}" Type="{office}/worksheet" '
                  f'Target="worksheets/sheet{i}.xml"/>' for i, _ in names) + "</Relationships>",
        "xl/styles.xml": f'<styleSheet xmlns="{main}"><cellXfs count="2"><xf numFmtId="0"/>'
        '<xf numFmtId="14" applyNumberFormat="1"/></cellXfs></styleSheet>',
    } | {f"xl/worksheets/sheet{i}.xml": sheets[name] for i, name in names}  # fmt: skip
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as book:
        for part, text in parts.items():
            book.writestr(part, text)
    return out.getvalue()


SHEET = sheet_xml(CLEAN)
table("a workbook", workbook(Sheet1=SHEET), ending=".xlsx")
table("a workbook with a title", workbook(Sheet1=sheet_xml(CLEAN, [["Sales"], [""]])),
      ending=".xlsx")  # fmt: skip
table("a workbook with empty sheets", ending=".xlsx",
      data=workbook(Tabelle1=SHEET, Tabelle2=sheet_xml({})))  # fmt: skip
OTHER = sheet_xml({"shop": SHOPS, "size": [1, 2, 3, 4, 5, 6]})
table("a workbook of two sheets", workbook(Sales=SHEET, Shops=OTHER), "--sheet Sales",
      ending=".xlsx")  # fmt: skip
table("a workbook named .csv", workbook(Sheet1=SHEET), "mv t.csv t.xlsx")
table("text named .xls", TEXT, "mv t.xls t.csv", ending=".xls")


def clean_parquet(folder, name="clean.parquet", **more):
    pq.write_table(pa.table(CLEAN | more), folder / name)
    return folder / name


def typed_parquet(folder):
    """The types that databases and pandas write."""
    arrays = {name: pa.array(values) for name, values in CLEAN.items()}
    arrays["kind"] = arrays["kind"].dictionary_encode()
    arrays["shop"] = arrays["shop"].dictionary_encode()
    arrays["price"] = pa.array([f"{v:.2f}" for v in CLEAN["price"]]).cast(pa.decimal128(9, 2))
    arrays["when"] = arrays["when"].cast(pa.timestamp("us", tz="UTC"))
    arrays["code"] = arrays["code"].cast(pa.int8())
    pq.write_table(pa.table(arrays), folder / "t.parquet")
    return folder / "t.parquet"


def pandas_parquet(folder):
    import pandas as pd

    frame = pd.DataFrame(CLEAN).astype({"kind": "category", "shop": "category"})
    frame["when"] = pd.to_datetime(frame["when"])
    frame.set_index(np.random.default_rng(0).permutation(N_ROWS)).to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


MESSY["Parquet as databases write it"] = Messy(typed_parquet)
MESSY["Parquet of pandas"] = Messy(pandas_parquet)
