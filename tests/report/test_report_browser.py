"""The report in a real browser."""

import csv
import shutil

import numpy as np
import pytest

import sharedspan as ss
from sharedspan.report.page import write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
HOSTILE = [
    '<img src="x" onerror="window.broken=1">', "</script><script>window.broken=2</script>",
    "\"' onmouseover='window.broken=3'", "<style>body{display:none}</style>", "=1+1", "-2+3",
    'a,"b",c', "two\nlines", "cr\r\nlf", " spaces ", "שלום עולם", "\u202eturned\u202c",
    "👩‍👩‍👧 family",
    "javascript:window.broken=4", "<!-- <script x", "z" * 10_000, "\u2028line", "tab\there",
    "plain",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((command for name in BROWSERS if (command := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser is installed, none of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A report of 120 named tasks with outliers, and its model."""
    sim = ss.simulate(n_tasks=120, n_features=6, rank=3, n_samples=25, noise=0.5, outliers=0.03,
                      random_state=0)  # fmt: skip
    labels = np.array([f"task {t:03d}" for t in range(120)])[sim.task]
    model = ss.SharedSpanRegressor(rank=3, solver="auto", random_state=0)
    model.fit(sim.X, sim.y, task=labels)
    path = tmp_path_factory.mktemp("plain") / "report.html"
    return write_report(model, path, sim.X, sim.y, labels), model


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A report whose tasks, columns and title are made to break it, and its model."""
    pd = pytest.importorskip("pandas")
    size = len(HOSTILE)
    sim = ss.simulate(n_tasks=size, n_features=size, rank=2, n_samples=60, noise=0.5,
                      outliers=0.1, random_state=0)  # fmt: skip
    frame = pd.DataFrame(sim.X, columns=HOSTILE)
    labels = np.array(HOSTILE, dtype=object)[sim.task]
    model = ss.AdaptiveSpanRegressor().fit(frame, sim.y, task=labels)
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    write_report(model, path, frame, sim.y, labels, title=HOSTILE[0], task_name=HOSTILE[1],
                 target_name=HOSTILE[3])  # fmt: skip
    return path, model


@pytest.fixture
def visit(browser):
    """Open a page, and check at the end that it had no errors and made no requests."""
    contexts, complaints, requests, opened = [], [], [], []

    def go(path, width=1000, scheme="light", **options):
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        opened.append(path.as_uri())
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []
    outside = [url for url in requests if not url.startswith(("data:", "blob:"))]
    assert outside == opened


def labels_shown(page):
    return page.eval_on_selector_all(
        "#coefficients tbody th", "cells => cells.map(c => c.textContent)"
    )


def downloaded(page, tmp_path):
    with page.expect_download() as waiting:
        page.click("#download")
    path = tmp_path / "coefficients.csv"
    waiting.value.save_as(path)
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_pointing_at_a_task_shows_its_name_and_values(visit, plain):
    page, (_, model) = visit(plain[0]), plain
    plot = page.locator('.hover[data-plot="map-0"]')
    plot.scroll_into_view_if_needed()
    path = plot.locator("path.points").first.get_attribute("d")
    box = plot.locator("svg").bounding_box()
    scale = box["width"] / float(plot.locator("svg").get_attribute("viewBox").split()[2])
    for t in (0, 57, 119):
        x, y = map(float, path.split("M")[1:][t].removesuffix("h0").split())
        page.mouse.move(box["x"] + x * scale, box["y"] + y * scale)
        said = page.inner_text("#tip")
        assert said.startswith(str(model.tasks_[t]))
        assert "direction 1: " in said
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    assert page.is_hidden("#tip")


def test_arrow_keys_walk_over_the_tasks_of_a_map(visit, plain):
    page = visit(plain[0])
    page.focus('.hover[data-plot="map-0"]')
    page.keyboard.press("End")
    last = page.inner_text("#tip bdi")
    page.keyboard.press("Home")
    first = page.inner_text("#tip bdi")
    page.keyboard.press("ArrowRight")
    assert len({first, last, page.inner_text("#tip bdi")}) == 3
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")


def test_another_pair_of_directions_is_another_map(visit, plain):
    page = visit(plain[0])
    page.select_option("#pair", "2")
    assert page.eval_on_selector_all(".map", "all => all.map(m => m.hidden)") == [True, True, False]
    assert "direction 3" in page.locator(".map").nth(2).inner_text()


def test_filter_and_pages_show_the_tasks_asked_for(visit, plain):
    page = visit(plain[0])
    assert labels_shown(page) == [f"task {t:03d}" for t in range(50)]
    page.click("#next")
    page.click("#next")
    assert labels_shown(page) == [f"task {t:03d}" for t in range(100, 120)]
    page.fill("#filter", "TASK 11")
    assert labels_shown(page) == [f"task {t:03d}" for t in range(110, 120)]
    assert page.inner_text("#shown").startswith("10 of 120 tasks")
    assert page.locator('.hover[data-plot="map-0"] .matching').count() == 10
    page.fill("#filter", "nothing has this name")
    assert labels_shown(page) == []
    page.fill("#filter", "")
    page.fill("#columns", "x3")
    names = page.eval_on_selector_all("#coefficients thead th", "all => all.map(h => h.innerText)")
    assert [name.strip(" ▲") for name in names] == ["task", "x3"]


def test_a_click_on_a_column_sorts_by_it(visit, plain):
    page, (_, model) = visit(plain[0]), plain
    order = [str(model.tasks_[t]) for t in np.argsort(-model.coef_[:, 2], kind="stable")]
    header = page.locator("#coefficients thead button", has_text="x2")
    header.click()
    assert labels_shown(page) == order[:50]
    header.click()
    assert labels_shown(page) == order[::-1][:50]


def test_download_reads_back_as_the_model(visit, plain, tmp_path):
    page, (_, model) = visit(plain[0], accept_downloads=True), plain
    head, *rows = downloaded(page, tmp_path)
    assert [row[0] for row in rows] == [str(label) for label in model.tasks_]
    first = head.index("x0")
    read = np.array([[float(value) for value in row[first : first + 6]] for row in rows])
    np.testing.assert_array_equal(read, model.coef_)
    np.testing.assert_array_equal(
        [float(r[head.index("intercept")]) for r in rows], model.intercept_
    )
    page.fill("#filter", "task 007")
    assert [row[0] for row in downloaded(page, tmp_path)[1:]] == ["task 007"]


def test_hostile_names_neither_run_nor_become_elements(visit, hostile):
    page = visit(hostile[0])
    page.fill("#filter", "<img")
    page.fill("#filter", "")
    for box in page.locator(".hover").all():
        if box.is_visible():
            box.focus()
            page.keyboard.press("End")
    assert page.evaluate("window.broken") is None
    assert page.evaluate("document.scripts.length") == 2
    assert page.locator("img, body style, iframe, object").count() == 0
    attributes = page.evaluate(
        "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"
    )
    assert not [name for name in attributes if name.startswith("on")]
    assert len(labels_shown(page)) == len(HOSTILE)
    assert max(map(len, labels_shown(page))) < 60
    whole = page.eval_on_selector_all("#coefficients tbody bdi", "all => all.map(b => b.title)")
    assert "z" * 10_000 in whole


def test_hostile_names_pass_through_the_download_unharmed(visit, hostile, tmp_path):
    path, model = hostile
    head, *rows = downloaded(visit(path, accept_downloads=True), tmp_path)
    assert [row[0] for row in rows] == list(model.tasks_)
    assert head[0] == HOSTILE[1]
    slopes = slice(2, 2 + len(HOSTILE))
    assert head[slopes] == HOSTILE
    read = np.array([[float(value) for value in row[slopes]] for row in rows])
    np.testing.assert_array_equal(read, model.coef_)


@pytest.mark.parametrize("which", ["plain", "hostile"])
@pytest.mark.parametrize("width", [360, 1280])
def test_page_is_no_wider_than_the_screen(visit, which, width, request):
    page = visit(request.getfixturevalue(which)[0], width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_dark_and_light_differ_and_paper_is_light(visit, plain):
    def colours(page):
        style = "getComputedStyle(document.body)"
        point = "getComputedStyle(document.querySelector('path.points')).stroke"
        return [page.evaluate(f"{style}.backgroundColor"), page.evaluate(f"{style}.color"),
                page.evaluate(point)]  # fmt: skip

    light, dark = visit(plain[0], scheme="light"), visit(plain[0], scheme="dark")
    assert all(a != b for a, b in zip(colours(light), colours(dark), strict=True))
    dark.emulate_media(media="print")
    assert colours(dark)[0] == "rgb(255, 255, 255)"
    assert dark.locator("#controls").is_hidden()


def test_without_scripts_everything_is_there_to_read(visit, plain):
    page = visit(plain[0], java_script_enabled=False)
    assert page.locator("svg").first.is_visible()
    assert page.locator("#controls").is_hidden()
    assert page.locator("#coefficients tbody tr").count() == 10


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A report of responses so small that labels of axes are long, its rank chosen by rows."""
    sim = ss.simulate(n_tasks=30, n_features=5, rank=2, n_samples=20, noise=0.5, random_state=0)
    model = ss.SharedSpanRegressor(solver="auto", random_state=0)
    model.fit(sim.X, 0.03 * sim.y, task=sim.task)
    path = tmp_path_factory.mktemp("tiny") / "report.html"
    return write_report(model, path, sim.X, 0.03 * sim.y, sim.task), model


@pytest.fixture(scope="module")
def spanless(tmp_path_factory):
    """A report of 60 tasks, each fitted by itself."""
    sim = ss.simulate(n_tasks=60, n_features=12, rank=2, n_samples=30, random_state=0)
    model = ss.PerTaskRegressor().fit(sim.X, sim.y, task=sim.task)
    path = tmp_path_factory.mktemp("spanless") / "report.html"
    return write_report(model, path, sim.X, sim.y, sim.task), model


OVERLAPS = """() => [...document.querySelectorAll('svg')].flatMap((svg) => {
  const boxes = (style) => [...svg.querySelectorAll(style)]
    .map((text) => [text.textContent, text.getBoundingClientRect()])
    .filter(([, box]) => box.width > 0);
  const cross = (from, to, a, b) => a[from] < b[to] && b[from] < a[to];
  const meet = (a, b) => cross('left', 'right', a, b) && cross('top', 'bottom', a, b);
  const texts = boxes('.axis text');
  return texts.flatMap(([one, a], i) => texts.slice(i + 1)
    .filter(([, b]) => meet(a, b)).map(([other]) => `${one} / ${other}`));
})"""


@pytest.mark.parametrize("which", ["plain", "hostile", "tiny", "spanless"])
@pytest.mark.parametrize("width", [390, 1280])
def test_labels_of_axes_do_not_cover_each_other(visit, which, width, request):
    page = visit(request.getfixturevalue(which)[0], width)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.evaluate("document.querySelectorAll('.map').forEach(m => { m.hidden = false; })")
    assert page.evaluate(OVERLAPS) == []


def test_pointing_at_a_coefficient_shows_the_task_that_has_it(visit, spanless):
    page, (_, model) = visit(spanless[0]), spanless
    plot = page.locator('.hover[data-plot="slopes"]')
    plot.scroll_into_view_if_needed()
    steps = plot.locator("path.points").first.get_attribute("d").split("M")[1:]
    box = plot.locator("svg").bounding_box()
    scale = box["width"] / float(plot.locator("svg").get_attribute("viewBox").split()[2])
    k = max(range(60), key=lambda i: float(steps[i].split()[0]))  # alone at the end of its strip
    x, y = map(float, steps[k].removesuffix("h0").split())
    page.mouse.move(box["x"] + x * scale, box["y"] + y * scale)
    feature = page.eval_on_selector('[data-plot="slopes"] .name text', "name => name.textContent")
    assert page.inner_text("#tip bdi") == str(model.tasks_[k])
    assert k == model.coef_[:, int(feature[1:])].argmax()


def test_paper_says_what_it_leaves_out_and_offers_nothing_to_point_at(visit, plain):
    page = visit(plain[0])
    assert page.locator("#printed").is_hidden()
    hint = page.get_by_text("Point at a task", exact=False).first
    assert hint.is_visible()
    page.emulate_media(media="print")
    columns = page.evaluate("JSON.parse(document.getElementById('data').textContent).columns")
    said = page.inner_text("#printed")
    assert said.startswith(f"On paper: 50 of 120 tasks and 7 of {len(columns)} columns.")
    shown = "all => all.filter(c => c.checkVisibility()).length"
    assert page.eval_on_selector_all("#coefficients thead th", shown) == 1 + 7
    assert page.eval_on_selector_all("#coefficients tbody tr", shown) == 50
    assert page.locator("#shown").is_hidden()
    assert hint.is_hidden()


def test_without_scripts_nothing_is_promised_that_needs_them(visit, plain):
    page = visit(plain[0], java_script_enabled=False)
    for words in ("The download has", "Point at a task"):
        assert page.get_by_text(words, exact=False).first.is_hidden()
    assert page.locator("#pair").is_hidden()
    with_scripts = visit(plain[0])
    assert with_scripts.get_by_text("The download has", exact=False).first.is_visible()
    assert with_scripts.locator("#pair").is_visible()
