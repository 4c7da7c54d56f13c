"""Reports in a real browser: Chromium, offline. Run with `make test-browser`."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowccl.report import save_report
from tests.report.test_report import made

playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]
MANY = 100_000
_ATTEMPTS = 5
ZOOM = """async () => { const x = flowccl.views[0].models.timeline.x_range, end = x.end, found = [];
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    for (let k = 1; k <= 40; k++) {
        const width = end * 0.9 ** k, low = 0.3 * (end - width), before = performance.now();
        x.setv({ start: low, end: low + width });
        await frame(); await frame(); // the level of detail is computed in the first frame, and painted in the second
        found.push((performance.now() - before) / 2); }
    return found; }"""
READY = "document.documentElement.dataset.ready === 'yes'"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as start:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = start.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    small, other = made("ndv2:1", "allgather", 80_000, "ring"), made("ndv2:1", "allgather", 80_000, "direct")
    save_report([small], folder / "small.html")
    save_report([small, other], folder / "two.html", names=["ring", "direct"])
    save_report([made("ring:4", "allreduce", 80_000, "ring")], folder / "allreduce.html")
    large = made("ring:8", "allgather", 8 * 1800 * 1000, "ring", chunks=1800)
    assert len(large) > MANY
    save_report([large], folder / "large.html")
    return {path.stem: path for path in folder.glob("*.html")}


def opened(browser: Any, path: Path, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page that is ready, and everything it complained about or tried to load from outside."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900}, offline=True)
    page, problems = context.new_page(), []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else problems.append(r.url))
    page.goto(path.as_uri())
    page.wait_for_function(READY, timeout=30_000)
    return page, problems


@pytest.mark.parametrize("name", ["small", "two", "large"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_loads_without_errors_and_requests(browser, reports, name, scheme) -> None:
    page, problems = opened(browser, reports[name], scheme)
    page.wait_for_timeout(300)
    assert problems == []
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.locator(".picture canvas").count() or page.evaluate("Bokeh.documents.length") == 1


def test_clicking_a_link_filters_the_timeline(browser, reports) -> None:
    page, problems = opened(browser, reports["small"])
    every = page.evaluate("flowccl.views[0].timeline.rows.length")
    assert every > 10
    page.locator("#links-0 tr[data-link]").nth(2).click()
    name = page.locator("#links-0 tr[data-link] td").nth(2 * 8).inner_text()
    assert page.evaluate("flowccl.views[0].timeline.rows.length") == 1
    assert page.locator("#selected-0").inner_text() == f"shown: {name}, 1 link"
    assert page.locator('#links-0 tr[aria-selected="true"]').count() == 1
    bars = page.evaluate("flowccl.views[0].models.bars.get_column('left').length")
    assert bars == page.evaluate(
        "(() => {const v = flowccl.views[0], r = v.data.range.get(v.timeline.rows[0]); return r[1] - r[0]})()"
    )
    page.locator("#clear-0").click()
    assert page.evaluate("flowccl.views[0].timeline.rows.length") == every
    page.locator("#links-0 tr[data-link]").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("flowccl.views[0].timeline.rows.length") == 1
    assert problems == []


def test_clicking_the_machine_selects_a_gpu_everywhere(browser, reports) -> None:
    page, _ = opened(browser, reports["small"])
    box = page.locator(".picture").first.bounding_box()
    at = page.evaluate(
        """(() => { const v = flowccl.views[0], view = Bokeh.index.get_one(v.models.machine), n = v.models.nodes;
        const f = view.frame, r = view.el.getBoundingClientRect();
        return [r.x + f.x_scale.compute(n.get_column('x')[0]), r.y + f.y_scale.compute(n.get_column('y')[0])]; })()"""
    )
    assert box["x"] < at[0] < box["x"] + box["width"]
    page.mouse.click(*at)
    page.wait_for_timeout(400)
    assert page.locator("#selected-0").inner_text().startswith("shown: gpu0, ")
    ends = page.evaluate("flowccl.views[0].timeline.rows.map((link) => flowccl.views[0].facts.link_ends[link])")
    assert all(0 in pair for pair in ends)


def test_the_slider_moves_and_plays(browser, reports) -> None:
    page, problems = opened(browser, reports["small"])
    assert "0.0 % of their data" in page.locator("#moment-0").inner_text()
    page.locator("#slider-0").fill("1000")
    assert "100.0 % of their data" in page.locator("#moment-0").inner_text()
    finish = page.evaluate("flowccl.views[0].facts.finish_us")
    assert page.evaluate("flowccl.views[0].models.cursor.location") == pytest.approx(finish)
    page.locator("#slider-0").fill("300")
    assert page.evaluate("flowccl.views[0].models.dots.get_column('x').length") > 0
    page.locator("#play-0").click()
    page.wait_for_function(f"flowccl.views[0].time > {0.35 * finish}", timeout=20_000)
    page.locator("#play-0").click()
    stopped = page.evaluate("flowccl.views[0].time")
    page.wait_for_timeout(200)
    assert page.evaluate("flowccl.views[0].time") == stopped
    assert problems == []


def test_pointing_tells_the_story_of_a_transfer_and_of_idle_time(browser, reports) -> None:
    page, _ = opened(browser, reports["small"])
    page.locator(".picture").nth(1).scroll_into_view_if_needed()
    at = page.evaluate(
        """(() => { const v = flowccl.views[0], view = Bokeh.index.get_one(v.models.timeline), h = v.data.hops;
        const r = view.el.getBoundingClientRect(), f = view.frame, row = v.timeline.rowOf.get(h.link[0]);
        return [r.x + f.x_scale.compute((h.start[0] + h.end[0]) / 2), r.y + f.y_scale.compute(-row)]; })()"""
    )
    page.mouse.move(at[0] - 3, at[1])
    page.mouse.move(*at)
    page.wait_for_timeout(200)
    text = page.locator("#story-0").inner_text()
    assert "transfer " in text
    assert "arrives at" in text
    idle = page.evaluate(
        "flowccl.views[0].data.story(flowccl.views[0].timeline.rows[0], flowccl.views[0].facts.finish_us * 0.9999)"
    )
    assert "not needed any more" in idle or "transfer" in idle


def test_colours_can_be_changed(browser, reports) -> None:
    page, _ = opened(browser, reports["small"])
    page.locator("#colour-0").select_option("chunk")
    assert "colour: chunk" in page.locator("#legend-0").inner_text()
    page.locator("#critical-0").uncheck()
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_timeline_of_a_reduction_shows_its_phases(browser, reports) -> None:
    page, problems = opened(browser, reports["allreduce"])
    assert page.locator("#legend-0").inner_text().split("\n") == [
        "colour: copied, or reduced at the destination",
        "copy",
        "reduce",
    ]
    for key in ("chunk", "sender"):
        page.locator("#colour-0").select_option(key)
        assert page.evaluate("new Set(flowccl.views[0].models.bars.get_column('colour')).size") > 2
    assert problems == []


def test_paper_is_light_and_has_pictures_of_its_own(browser, reports) -> None:
    page, problems = opened(browser, reports["small"], "dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.locator("img.paper").count() == 3
    assert page.evaluate("Math.min(...[...document.querySelectorAll('img.paper')].map((i) => i.src.length))") > 2000
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.locator("img.paper").count() == 0
    assert page.pdf(format="A4")[:5] == b"%PDF-"
    assert problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_of_text_is_at_least_4_5(browser, reports, scheme) -> None:
    page, _ = opened(browser, reports["small"], scheme)
    least = page.evaluate(
        """(() => {
        const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        const lum = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map((v) => linear(Number(v) / 255));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const back = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
            if (c !== "rgba(0, 0, 0, 0)") return c; } return "rgb(255,255,255)"; };
        const ratio = (e) => { const [a, b] = [lum(getComputedStyle(e).color), lum(back(e))].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05); };
        const texts = document.querySelectorAll("p, td, th, h1, h2, h3, caption, button, span, .fact, output");
        return Math.min(...[...texts].filter((e) => e.innerText && e.innerText.trim()).map(ratio)); })()"""
    )
    assert least >= 4.5


def test_100_000_transfers_draw_in_3_s_and_zoom_in_100_ms_a_frame(browser, reports) -> None:
    """The best of a few attempts counts, because other work on the computer only adds to the times."""
    draw_ms, zoom_ms = [], []
    for _ in range(_ATTEMPTS):
        page, problems = opened(browser, reports["large"])
        draw_ms.append(page.evaluate("performance.now()"))
        assert page.evaluate("flowccl.views[0].timeline.drawn.hops") > MANY
        frames = page.evaluate(ZOOM)
        zoom_ms.append(sorted(frames)[len(frames) // 2])
        page.wait_for_timeout(200)
        assert page.evaluate("flowccl.views[0].timeline.drawn.detail")
        assert problems == []
        page.context.close()
        if draw_ms[-1] < 3_000 and zoom_ms[-1] < 100:
            break
    print(f"drawn after {min(draw_ms):.0f} ms, a frame of a zoom takes {min(zoom_ms):.0f} ms")
    assert min(draw_ms) < 3_000
    assert min(zoom_ms) < 100
