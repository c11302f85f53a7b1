"""The page in a real browser: figures, toggles, keyboard, contrast, narrow and wide. Skipped where there is no Chromium."""

import shutil
from pathlib import Path

import pytest

from arquant.commands.report import report
from arquant.reporting.result_charts import STEPS
from tests.support.report_runs import write_search

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (the dev extra has it)")
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
WIDTHS = (420, 1400)

pytestmark = [
    pytest.mark.skipif(
        BROWSER is None or DRIVER is None,
        reason="no chromium with chromedriver here (Debian: apt-get install chromium chromium-driver)",
    ),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CONTRASTS = """
const light = colour => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = e => {
  for (; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (!/rgba\\(.*, 0\\)|transparent/.test(colour)) return colour;
  }
  return 'rgb(255, 255, 255)';
};
const contrast = (e, colour) => {
  const [low, high] = [light(colour), light(ground(e))].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const shown = selector => [...document.querySelectorAll(selector)].filter(e => e.getClientRects().length);
const texts = shown('p,li,dt,dd,td,th,h1,h2,h3,summary,figcaption,button,nav a,span,b').map(
  e => [e, contrast(e, getComputedStyle(e).color), 4.5]);
const labels = shown('svg text:not(.look0 text)').map(e => [e, contrast(e, getComputedStyle(e).fill), 4.5]);
const inside = shown('svg .look0 text').filter(e => e.textContent).map(e => {
  const [low, high] = [light(getComputedStyle(e).fill), light(getComputedStyle(e.parentElement).color)].sort((a, b) => a - b);
  return [e, (high + 0.05) / (low + 0.05), 4.5];
});
const series = shown('svg g[data-s]').map(e => [e, contrast(e, getComputedStyle(e).color), 3]);
return [...texts, ...labels, ...inside, ...series].filter(([e, found, least]) => found < least)
  .map(([e, found]) => `${e.tagName} ${e.textContent.slice(0, 30)} ${found.toFixed(2)}`);
"""

OVERFLOWS = """
var wide=document.documentElement.clientWidth,bad=[];
document.querySelectorAll('main *').forEach(function(e){if(e.closest('.scroll')||!e.getClientRects().length)return;
var b=e.getBoundingClientRect();if(b.right>wide+1||b.left<-1)bad.push(e.tagName+' '+e.textContent.slice(0,30))});
return bad"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(write_search(tmp_path_factory.mktemp("browser") / "run")).path


@pytest.fixture(scope="module")
def driver():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture
def show(driver, page):
    def at(width: int, scheme: str = "light"):
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.get(page.as_uri())
        return driver

    return at


def css(driver, selector):
    return driver.find_elements("css selector", selector)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_errors_and_nothing_overflows(show, width):
    driver = show(width)
    for details in css(driver, "details:not([open]) > summary"):
        driver.execute_script("arguments[0].click()", details)
    assert driver.execute_script(OVERFLOWS) == []
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("width", WIDTHS)
def test_figures_have_their_marks(show, width):
    driver = show(width)
    drawn = "svg.n" if width < 500 else "svg.w"
    assert len(css(driver, "figure")) == 8
    assert [each.is_displayed() for each in css(driver, f"figure {drawn}")] == [True] * 8
    assert len(css(driver, f"[data-chart=outcomes] {drawn} rect.m")) == 3 * 4
    gaps = f"[data-chart=differences] {drawn}"
    assert len(css(driver, f"{gaps} .error")) == len(css(driver, f"{gaps} circle.m")) == 2 * 5
    assert len(css(driver, f"[data-chart=accuracy] {drawn} .m")) == 3 * (STEPS + 1)
    assert len(css(driver, f"[data-chart=accuracy] {drawn} .band")) == 3
    assert len(css(driver, f"[data-chart=accuracy] {drawn} .beyond")) == 1
    assert len(css(driver, f"[data-chart=bits-0] {drawn} rect.m")) == 6
    assert len(css(driver, f"[data-chart=learning] {drawn} circle.m")) == 4
    assert len(css(driver, f"[data-chart=sensitivity-w] {drawn} circle.m")) == 4
    assert len(css(driver, f"[data-chart=sensitivity-a] {drawn} .error")) == 4


@pytest.mark.parametrize("width", WIDTHS)
def test_text_in_figures_is_readable(show, width):
    driver = show(width)
    heights = driver.execute_script(
        "return [...document.querySelectorAll('svg text')].filter(t=>t.getClientRects().length)"
        ".map(t=>parseFloat(getComputedStyle(t).fontSize)*t.ownerSVGElement.getScreenCTM().a)"
    )
    assert min(heights) >= 8.5


def test_tables_stack_on_narrow_screens(show):
    driver = show(420)
    assert [each.is_displayed() for each in css(driver, "#verdict thead")] == [False] * 3
    cell = css(driver, "#verdict tbody td")[0]
    assert (
        driver.execute_script("return getComputedStyle(arguments[0], '::before').content", cell) == '"right at r = 0"'
    )
    assert css(show(1400), "#verdict thead")[0].is_displayed()


def test_it_begins_with_the_verdict_and_folds_what_was_asked(show):
    driver = show(1400)
    top = [css(driver, f"#{name}")[0].location["y"] for name in ("verdict", "asked", "result", "evidence", "claims")]
    assert top == sorted(top)
    assert css(driver, "#verdict .first")[0].location["y"] < 600
    assert not css(driver, "#asked dl")[0].is_displayed()
    places = [css(driver, f"[data-chart={key}]")[0].location for key in ("outcomes", "differences")]
    assert places[0]["y"] == places[1]["y"], "they stand side by side"


def test_models_keep_their_colours(show):
    driver = show(1400)
    colour = "return getComputedStyle(document.querySelector(arguments[0])).color"
    for number in range(3):
        found = {
            driver.execute_script(colour, selector)
            for selector in (
                f"[data-chart=outcomes] svg.w g.look0.c{number}",
                f"[data-chart=accuracy] svg.w g[data-s='{number}']",
                f"[data-chart=votes] svg.w g[data-s='{number}']",
            )
        }
        assert len(found) == 1


def test_toggles_hide_a_series(show):
    driver = show(1400)
    button = css(driver, "[data-chart=accuracy] [data-toggle='1']")[0]
    group = css(driver, "[data-chart=accuracy] svg.w g[data-s='1']")[0]
    assert group.is_displayed()
    driver.execute_script("arguments[0].focus()", button)
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-pressed") == "false"
    assert not group.is_displayed()
    button.send_keys(Keys.SPACE)
    assert group.is_displayed()


def test_marks_are_reached_by_the_keyboard(show):
    driver = show(1400)
    chart = css(driver, "[data-chart=bits-0] svg.w")[0]
    driver.execute_script("arguments[0].focus()", chart)
    chart.send_keys(Keys.ARROW_RIGHT)
    # focus scrolls the figure into view, which a busy machine may tell the page only now: the place must not be lost
    driver.execute_script("window.dispatchEvent(new Event('scroll'))")
    tip = css(driver, "#tip")[0]
    assert tip.is_displayed()
    assert tip.text == "a: 8-bit weights"
    chart.send_keys(Keys.ARROW_RIGHT)
    assert tip.text == "b: 3-bit weights"
    chart.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


def test_every_control_is_in_the_tab_order(show):
    driver = show(1400)
    driver.execute_script("window.seen = new Set(); document.addEventListener('focusin', e => seen.add(e.target))")
    webdriver.ActionChains(driver).send_keys(Keys.TAB * 90).perform()
    missed = (
        "return [...document.querySelectorAll('button, summary, nav a, svg.w')].filter(e => !seen.has(e))"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert driver.execute_script(missed) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_contrast_suffices(show, width, scheme):
    driver = show(width, scheme)
    assert driver.execute_script(CONTRASTS) == []


def test_hovering_tells_the_value(show):
    driver = show(1400)
    mark = css(driver, "[data-chart=learning] svg.w circle.m")[1]
    driver.execute_script("arguments[0].scrollIntoView({block:'center'})", mark)
    wanted = "candidate 3 (w3a3): 0.400 ± 0.020 after 60 steps, within bops<=3bit"

    def hovered(_):
        """A busy machine may still be scrolling when the pointer moves, and another mark, or none, lie below it."""
        webdriver.ActionChains(driver).move_by_offset(1, 1).move_to_element(mark).perform()
        return css(driver, "#tip")[0].text == wanted

    WebDriverWait(driver, 60).until(hovered, f"the tip does not say {wanted!r}")
